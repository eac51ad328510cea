"""``gcomm gnmr``: what a stability controller did, what another would have done, and which one fits a run."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

import gcomm
from gcomm._gnmr_log import finite
from gcomm.cli import present
from gcomm.cli.plots import require_matplotlib
from gcomm.gnmr import Replay, calibrate, replay

_CHANGES = (
    ("--tau", float, "rho above which a unit is at risk"),
    ("--tau-delta", float, "rise of rho above which it is"),
    ("--window", int, "observations that both means go back"),
    ("--warmup", int, "finite norms before a unit can be at risk"),
    ("--max-ops", int, "units clipped or under recovery at once"),
    ("--lock", int, "steps of a recovery"),
    ("--levels", int, "wire formats in a unit's list"),
)


@click.group()
def gnmr() -> None:
    """Look at the log of a stability controller (docs/gnmr.md)."""


def _with_changes(command: Any) -> Any:
    for flag, kind, text in reversed(_CHANGES):
        command = click.option(flag, type=kind, help=f"What if: {text}.")(command)
    return command


@gnmr.command(name="replay")
@click.argument("log", type=click.Path(exists=True, dir_okay=False))
@_with_changes
@click.option("-P", "--plot", "plot_file", metavar="FILE", help="Draw the timeline, PNG.")
@click.option("-J", "--json", "json_file", metavar="FILE", help="Write the decisions as JSON; - is stdout.")
def replay_command(log: str, plot_file: str | None, json_file: str | None, **changes: Any) -> None:
    """Decide LOG again: with the run's own arguments, and with others if any are given.

    Exit code 1 if the run's own arguments do not lead to the logged decisions.
    """
    present.require_writable(plot_file, json_file)
    if plot_file:
        require_matplotlib()
    changed = {name: value for name, value in changes.items() if value is not None}
    try:
        own = replay(log)
        other = replay(log, **changed) if changed else None
    except gcomm.errors.GcommError as error:
        raise click.UsageError(str(error)) from None
    if json_file != "-":
        _show(own, other)
    if json_file:
        present.write_json(_described(own, other), json_file)
    if plot_file:
        from gcomm.cli.gnmr_plot import plot_timeline

        plot_timeline(own, other, plot_file)
    if not own.same:
        click.echo("the decisions differ from the logged ones: " + "; ".join(own.differs), err=True)
        raise SystemExit(1)


@gnmr.command(name="calibrate")
@click.argument("log", type=click.Path(exists=True, dir_okay=False))
@click.option("--false-alarm-rate", type=float, required=True, help="Alarms a unit-step, 0 to 1.")
@click.option("-J", "--json", "json_file", metavar="FILE", help="Write the proposal as JSON; - is stdout.")
def calibrate_command(log: str, false_alarm_rate: float, json_file: str | None) -> None:
    """Propose tau, tau_delta, window and max_ops from LOG, of a run in which nothing went wrong."""
    present.require_writable(json_file)
    try:
        found = calibrate(log, false_alarm_rate)
    except gcomm.errors.GcommError as error:
        raise click.UsageError(str(error)) from None
    if json_file != "-":
        table = Table(title=f"at most {false_alarm_rate:g} false alarms a unit-step")
        table.add_column("argument")
        table.add_column("proposed", justify="right")
        for name, value in found.config.items():
            table.add_row(name, f"{value:g}")
        console = present.table_console()
        console.print(table)
        console.print(
            f"on this log: {found.alarms} alarms in {found.unit_steps} unit-steps, a rate of {found.rate:.3g}"
        )
    if json_file:
        row = {
            "config": found.config,
            "rate": found.rate,
            "alarms": found.alarms,
            "unit_steps": found.unit_steps,
        }
        present.write_json(row, json_file)


def _show(own: Replay, other: Replay | None) -> None:
    console = present.table_console()
    table = Table(title="decisions")
    table.add_column("")
    table.add_column("this run", justify="right")
    if other is not None:
        table.add_column("what if", justify="right")
    rows = [*own.config, *own.totals()]
    for name in rows:
        cells = [f"{_value(each, name):g}" for each in (own, other) if each is not None]
        table.add_row(name, *cells)
    console.print(table)
    units = Table(title="units acted on or refused")
    for name in ("unit", "clips", "skips", "recoveries", "refusals"):
        units.add_column(name, justify="left" if name == "unit" else "right")
    for unit, counts in _by_unit(own).items():
        units.add_row(unit, *(str(counts[name]) for name in ("clips", "skips", "recoveries", "refusals")))
    if units.row_count:
        console.print(units)
    console.print(
        "every decision is the logged one" if own.same else "the decisions differ from the logged ones"
    )


def _value(which: Replay, name: str) -> float:
    return float(which.config[name] if name in which.config else which.totals()[name])


def _by_unit(which: Replay) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for report in which.reports:
        for unit, counts in report["by_unit"].items():
            sums = total.setdefault(unit, dict.fromkeys(counts, 0))
            for name, n in counts.items():
                sums[name] += n
    return total


def _described(own: Replay, other: Replay | None) -> dict[str, Any]:
    def one(which: Replay) -> dict[str, Any]:
        return {
            "config": {name: finite(value) for name, value in which.config.items()},
            "totals": which.totals(),
            "by_unit": _by_unit(which),
            "actions": [{"step": step, "units": actions} for step, actions in which.actions if actions],
        }

    described = {"same": own.same, "differs": own.differs, "run": one(own)}
    if other is not None:
        described["what_if"] = one(other)
    return described
