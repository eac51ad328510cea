"""``python -m benchmarks run [CASE...]``, ``keep CASE ROWS.json...``, ``list``, ``table``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES
from benchmarks.driver import SkippedError, keep, run_case, stored_results
from gcomm.cli.present import table_console


@click.group()
def main() -> None:
    """Benchmarks with targets; results are kept in benchmarks/results."""


@main.command("list")
def list_cases() -> None:
    """Show the cases and their commands."""
    for case in CASES.values():
        click.echo(f"{case.name}\n    {case.title}\n    {case.shown_command}")


@main.command()
@click.argument("names", nargs=-1, metavar="[CASE]...", type=click.Choice(list(CASES)))
def run(names: tuple[str, ...]) -> None:
    """Run the cases named (all, if none is) and keep their results.

    Exit code 1 if a case failed or missed a target. A case that cannot run here is skipped, with the reason.
    """
    ok = True
    for name in names or CASES:
        try:
            result = run_case(CASES[name], lambda text: click.echo(text, err=True))
        except SkippedError as reason:
            click.echo(f"{name}: skipped, {reason}")
        except subprocess.CalledProcessError as error:
            click.echo(f"{name}: failed with exit code {error.returncode}")
            ok = False
        else:
            _show([result], table_console())
            ok = ok and result["met"]
    if not ok:
        raise SystemExit(1)


@main.command("keep")
@click.argument("name", metavar="CASE", type=click.Choice(list(CASES)))
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def keep_rows(name: str, files: tuple[Path, ...]) -> None:
    """Judge and keep the rows that the case's command wrote when it was run by hand, one file a run.

    For cases that take long: their commands go on where they stopped.
    """
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    _show([keep(CASES[name], runs, os.getloadavg()[0])], table_console())


@main.command()
def table() -> None:
    """Show all kept results against their targets."""
    _show(stored_results(), table_console())


def _show(results: list[dict[str, Any]], console: Console) -> None:
    grid = Table()
    for heading in ("case", "figure"):
        grid.add_column(heading)
    for heading in ("wanted", "measured", "worst run", "best run"):
        grid.add_column(heading, justify="right")
    grid.add_column("met")
    for result in results:
        name = result["case"]
        for target in result["targets"]:
            sign, unit = ("<=" if target["at_most"] else ">="), target["unit"]
            runs = sorted(target["each_run"], reverse=target["at_most"])
            grid.add_row(
                name,
                target["name"],
                f"{sign} {target['limit']:g} {unit}",
                f"{target['value']:.3g} {unit}",
                f"{runs[0]:.3g}",
                f"{runs[-1]:.3g}",
                "[green]yes[/green]" if target["met"] else "[red]no[/red]",
            )
            name = ""
        if not result["targets"]:
            grid.add_row(name, f"{len(result['rows'])} rows, no target", "-", "-", "-", "-", "-")
    console.print(grid)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
