"""``gcomm plan``: a measurement, and from it the time of all_reduce in other sizes, codecs and worlds."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from gcomm.cli import plots, present
from gcomm.cli.bench import BYTES, codec_names
from gcomm.cli.bench_suite import run_bench
from gcomm.cli.sizes import format_bytes, sweep
from gcomm.cli.world import have

if TYPE_CHECKING:
    from gcomm.planner import Fit, Measurements
    from gcomm.planner.model import Layout

Row = dict[str, Any]

MEASURED_CODECS = "none,int8,fp8_e4m3,nvfp4"


class Bandwidth(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Bits a second as tc(8) writes them, in bytes a second."""

    name = "bandwidth"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """``"100mbit"``, ``"1gbit"``, ``"12.5gbit"``."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg])bit", value.strip().lower())
        if found is None or float(found[1]) == 0:
            self.fail(f"{value!r} is no bandwidth; write bits a second such as 100mbit or 25gbit", param, ctx)
        return float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]] / 8


class Amount(click.FloatRange):
    """A finite number of 0 or more."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As click does; to it, NaN is in every range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r}: expected a finite number", param, ctx)
        return number


class Numbers(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Whole numbers with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """``"2,8,64"``."""
        if isinstance(value, list):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
            self.fail(f"{value!r}: expected whole numbers from 1 on, such as 2,8,64", param, ctx)
        return [int(part) for part in parts]


@click.command()
@click.argument("files", nargs=-1, metavar="ROWS.json...")
@click.option("--measure", is_flag=True, help="Measure here first: 2 ranks, tcp, 1 KiB to 64 MiB (a minute).")
@click.option("--cores", type=click.IntRange(min=1), metavar="N", help="Of a host.  [default: this one's]")
@click.option(
    "--measured-per-host",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many of the measured ranks shared a host.  [default: all]",
)
@click.option(
    "--own-links",
    is_flag=True,
    help="Each measured rank had a link of its own, though they shared a host (tools/netlab.sh).",
)
@click.option(
    "--ranks", type=Numbers(), metavar="N,...", help="World sizes to predict.  [default: as measured]"
)
@click.option(
    "--per-host",
    type=click.IntRange(min=1),
    metavar="N",
    help="Ranks on a host. Above 1, also two levels: exact inside a host, compressed between hosts.  "
    "[default: as measured; 1 with --bandwidth]",
)
@click.option(
    "--bandwidth", type=Bandwidth(), help="Of a host's link, for instance 25gbit.  [default: as measured]"
)
@click.option("--latency", type=Amount(), metavar="US", help="Of an exchange.  [default: as measured]")
@click.option("-b", "--minbytes", type=BYTES, default="64M", show_default=True, help="Smallest size.")
@click.option("-e", "--maxbytes", type=BYTES, default=None, help="Largest size.  [default: as -b]")
@click.option(
    "-f", "--stepfactor", type=click.IntRange(min=2), default=4, show_default=True, help="Between sizes."
)
@click.option("--codec", metavar="A,B,...", help="Codecs to predict.  [default: all that were measured]")
@click.option(
    "--max-error",
    type=Amount(),
    metavar="E",
    help="Recommend the fastest codec whose measured relative error is at most E.",
)
@click.option("-J", "--json", "json_file", metavar="FILE", help="Write fit and predictions; - is stdout.")
@click.option("--plot", metavar="FILE.png", help="Draw time against size, or against ranks.")
def plan(files: tuple[str, ...], **options: Any) -> None:
    """Predict the time of all_reduce from rows of gcomm bench.

    ROWS.json come from gcomm bench all_reduce --json (at least five sizes a codec) and, for codecs that were
    only measured alone, gcomm bench codec --json. Every other size is held out of a first fit, and the error of
    its predictions there is printed before anything else.
    """
    if not have("numba"):
        raise click.UsageError("gcomm plan needs numba, which is not installed: pip install 'gcomm[plan]'")
    if not files and not options["measure"]:
        raise click.UsageError("give files of rows (gcomm bench all_reduce --json), or --measure")
    present.require_writable(options["json_file"], options["plot"])
    if options["plot"]:
        plots.require_matplotlib()
    from gcomm.planner import FitError, Layout, fit

    cores = options["cores"] or len(os.sched_getaffinity(0))

    def measured_layout(ranks: int) -> Layout:
        return Layout(ranks, options["measured_per_host"] or ranks, cores, options["own_links"])

    try:
        found = _rows(files, measure=options["measure"])
        fitted = fit(found, measured_layout)
    except FitError as error:
        raise click.UsageError(str(error)) from error
    layouts = _layouts(found, options, cores, measured_layout)
    rows = _predict(fitted, found, layouts, options)
    report = {"fit": _fit_row(fitted, found), "predictions": rows}
    if options["max_error"] is not None:
        report["recommended"] = _recommend(rows, found, options["max_error"])
    if options["json_file"]:
        present.write_json(report, options["json_file"])
    if options["json_file"] != "-":
        _show(report)
    if options["plot"]:
        plots.plot_plan(rows, options["plot"])


# ---- what goes in --------------------------------------------------------------------------------------------


def _rows(files: Sequence[str], *, measure: bool) -> Measurements:
    from gcomm.planner import read_rows
    from gcomm.planner.fit import load, sort_rows

    if not measure:
        return read_rows(files)
    words = f"all_reduce --nproc 2 -b 1K -e 64M -f 4 -n 20 -w 3 --codec {MEASURED_CODECS}".split()
    return sort_rows([*(row for path in files for row in load(path)), *run_bench(words)])


def _layouts(found: Measurements, options: Row, cores: int, measured_layout: Any) -> list[Layout]:
    from gcomm.planner.model import MOST_RANKS, Layout

    sizes = options["ranks"] or found.world_sizes
    if max(sizes) > MOST_RANKS:
        raise click.UsageError(f"--ranks {max(sizes)}: the planner goes up to {MOST_RANKS}")
    if options["per_host"] is None and options["bandwidth"] is None:
        layouts = [measured_layout(ranks) for ranks in sizes]
    else:
        layouts = [Layout(ranks, min(options["per_host"] or 1, ranks), cores) for ranks in sizes]
    crosses = any(layout.per_host < layout.ranks for layout in layouts)
    no_link = options["measured_per_host"] is None and not options["own_links"]
    if crosses and no_link and options["bandwidth"] is None:
        raise click.UsageError(
            "the measured ranks shared one host, so nothing is known of a link between hosts: give --bandwidth "
            "(and --latency)"
        )
    return layouts


# ---- what comes out ------------------------------------------------------------------------------------------


def _predict(fitted: Fit, found: Measurements, layouts: Sequence[Layout], options: Row) -> list[Row]:
    from gcomm.planner.fit import EXACT, with_link
    from gcomm.planner.model import ITEM_BYTES, predict, predict_two_level

    names = codec_names(options["codec"]) if options["codec"] else list(fitted.codecs)
    unknown = [name for name in names if name not in fitted.codecs]
    if unknown:
        raise click.UsageError(
            f"--codec {', '.join(unknown)}: not in the measurement, which has {', '.join(fitted.codecs)}"
        )
    try:
        sizes = sweep(options["minbytes"], options["maxbytes"] or options["minbytes"], options["stepfactor"], 0)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    latency = None if options["latency"] is None else options["latency"] * 1e-6
    costs = with_link(fitted.costs, options["bandwidth"], latency)
    exact = fitted.codecs.get(EXACT)
    rows = []
    for layout in layouts:
        for nbytes in sizes:
            count = max(1, nbytes // ITEM_BYTES)
            # One rank exchanges nothing, so there is nothing to be faster than.
            alone = layout.ranks == 1
            plain = predict(exact, count, costs, layout).time_s if exact and not alone else None
            against = {
                name: base.time_s(nbytes, layout, costs.wire_s if options["bandwidth"] else 0.0)
                for name, base in fitted.baselines.items()
                if not alone
            }
            for name in names:
                codec = fitted.codecs[name]
                ways = {"flat": predict(codec, count, costs, layout)}
                if exact and 1 < layout.per_host < layout.ranks:
                    ways["two_level"] = predict_two_level(codec, exact, count, costs, layout)
                rows += [
                    {
                        "collective": "all_reduce",
                        "codec": name,
                        "algorithm": way,
                        "world_size": layout.ranks,
                        "per_host": layout.per_host,
                        "bytes": nbytes,
                        "time_us": predicted.time_s * 1e6,
                        "bound": predicted.bound,
                        "speedup": plain / predicted.time_s if plain else None,
                        "speedup_over": {other: time_s / predicted.time_s for other, time_s in against.items()},
                    }
                    for way, predicted in ways.items()
                ]
    return rows


def _fit_row(fitted: Fit, found: Measurements) -> Row:
    return {
        "rows": len(found.rows),
        "held_out_rows": len(fitted.held_out),
        "held_out_median_error": fitted.median_error,
        "held_out_p90_error": fitted.p90_error,
        "costs": vars(fitted.costs),
        "codecs": {name: vars(codec) for name, codec in fitted.codecs.items()},
    }


def _recommend(rows: Sequence[Row], found: Measurements, most: float) -> list[Row]:
    """The fastest row whose codec was measured to be exact enough, for each number of ranks and size."""
    worst = {
        name: max(float(row.get("rel_err", math.inf)) for row in found.rows if row["codec"] == name)
        for name in found.codecs
    }
    good = [row for row in rows if worst.get(row["codec"], float("inf")) <= most]
    if not good:
        raise click.UsageError(
            f"--max-error {most:g}: no codec was measured to be that exact ("
            + ", ".join(f"{name} {error:.3g}" for name, error in worst.items())
            + ")"
        )
    keys = dict.fromkeys((row["world_size"], row["bytes"]) for row in good)
    return [
        min((row for row in good if (row["world_size"], row["bytes"]) == key), key=lambda row: row["time_us"])
        for key in keys
    ]


def _show(report: Row) -> None:
    console = present.table_console()
    fitted = report["fit"]
    console.print(
        f"fitted to {fitted['rows']} rows; {fitted['held_out_rows']} held out at first, predicted within "
        f"{fitted['held_out_median_error']:.1%} (median), {fitted['held_out_p90_error']:.1%} (90th percentile)"
    )
    others = list(dict.fromkeys(name for row in report["predictions"] for name in row["speedup_over"]))
    table = Table(title="all_reduce, predicted")
    for heading in ("ranks", "a host", "size", "codec", "algorithm", "time", "against none"):
        table.add_column(heading, justify="left" if heading in ("codec", "algorithm") else "right")
    for other in others:
        table.add_column(f"against {other.removeprefix('baseline:')}", justify="right")
    table.add_column("waits for")
    best = {json.dumps(row, sort_keys=True) for row in report.get("recommended", [])}
    for row in report["predictions"]:
        table.add_row(
            f"{row['world_size']:,}",
            str(row["per_host"]),
            format_bytes(row["bytes"]),
            row["codec"],
            row["algorithm"].replace("_", " "),
            _time_text(row["time_us"]),
            "-" if row["speedup"] is None else f"{row['speedup']:.2f}x",
            *(f"{row['speedup_over'][o]:.2f}x" if o in row["speedup_over"] else "-" for o in others),
            row["bound"],
            style="bold green" if json.dumps(row, sort_keys=True) in best else None,
        )
    console.print(table)
    for row in report.get("recommended", []):
        console.print(
            f"{row['world_size']:,} ranks, {format_bytes(row['bytes'])}: {row['codec']}, "
            f"{row['algorithm'].replace('_', ' ')}, {_time_text(row['time_us'])}"
        )


def _time_text(microseconds: float) -> str:
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= scale:
            return f"{microseconds / scale:.3g} {unit}"
    return f"{microseconds:.3g} us"
