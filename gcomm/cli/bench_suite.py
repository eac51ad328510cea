"""``gcomm bench suite``: collectives, codecs and link in one run, and one HTML page that shows it all."""

from __future__ import annotations

import datetime
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import gcomm
from gcomm.cli import present, report
from gcomm.cli.bench import BYTES, codec_names, rank_options, require_transport
from gcomm.cli.collectives import COLLECTIVES
from gcomm.cli.machine import machine, versions
from gcomm.cli.sizes import sweep
from gcomm.cli.world import have, under_launcher, under_mpiexec

DEFAULT_COLLECTIVES = "all_reduce,reduce_scatter,all_gather"
DEFAULT_CODECS = "none,int8,fp8_e4m3,nvfp4"
LINK_SIZES = ("8", "16M")

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One command of the suite.

    Attributes
    ----------
    name:
        ``"codec"``, ``"link"``, or a collective.
    words:
        What comes after ``gcomm bench``.
    """

    name: str
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        """As a person would type it."""
        return shlex.join(("gcomm", "bench", *self.words))


class BenchFailed(click.ClickException):
    """A bench command failed.

    Attributes
    ----------
    rows:
        What it had measured all the same: a run with wrong elements writes its rows, and fails.
    """

    def __init__(self, message: str, rows: list[Row]) -> None:
        super().__init__(message)
        self.rows = rows


def run_bench(words: Sequence[str]) -> list[Row]:
    """The rows of ``gcomm bench WORDS``, run as a process of its own; its table is not shown.

    Raises
    ------
    BenchFailed
        It failed; what it said is in the text.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        finished = subprocess.run(
            [sys.executable, "-m", "gcomm.cli", "bench", *words, "--json", str(rows)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        loaded: list[Row] = json.loads(rows.read_text(encoding="utf-8")) if rows.exists() else []
        if finished.returncode != 0:
            said = finished.stderr.strip().splitlines()
            raise BenchFailed(f"{shlex.join(('gcomm', 'bench', *words))} failed: {' '.join(said[-3:])}", loaded)
    return loaded


@click.command()
@click.option("-b", "--minbytes", type=BYTES, default=None, help="Smallest size.  [default: 1K]")
@click.option("-e", "--maxbytes", type=BYTES, default=None, help="Largest size.  [default: 64M]")
@click.option(
    "-f", "--stepfactor", type=click.IntRange(min=2), default=4, show_default=True, help="Between sizes."
)
@click.option(
    "-n", "--iters", type=click.IntRange(min=1), default=None, help="Timed iterations.  [default: 20]"
)
@click.option("-w", "--warmup_iters", type=click.IntRange(min=0), default=3, show_default=True, help="Before.")
@click.option(
    "--collectives", default=DEFAULT_COLLECTIVES, show_default=True, metavar="A,B,...", help="What to measure."
)
@click.option("--codec", default=DEFAULT_CODECS, show_default=True, metavar="A,B,...", help="none is exact.")
@click.option("--baseline", type=click.Choice(["torch", "mpi"]), help="Measure it in turn with ours.")
@click.option("--quick", is_flag=True, help="A page in seconds: few sizes up to 1 MiB, few iterations.")
@click.option(
    "--html", "html_file", default="gcomm-bench.html", show_default=True, metavar="FILE", help="The page."
)
@click.option(
    "-J", "--json", "json_file", metavar="FILE", help="Write all rows, each with its part; - is stdout."
)
@rank_options
def suite(**options: Any) -> None:
    """Sweep collectives, codecs and link, and write one self-contained HTML page.

    Each part is one of the other bench commands. The page names them all, so that a part can be run again
    alone. A part that fails is named on the page and at the end, the others go on, and the exit code is 1.
    """
    require_transport(options["transport"])
    present.require_writable(options["html_file"], options["json_file"])
    if not have("matplotlib"):
        raise click.UsageError("the plots need matplotlib, which is not installed: pip install 'gcomm[bench]'")
    if under_launcher() or under_mpiexec():
        raise click.UsageError("the suite starts its ranks itself, part by part: run it without a launcher")
    parts = _parts(options)
    rows: dict[str, list[Row]] = {}
    failed: dict[str, str] = {}
    began = time.monotonic()
    with present.progress(total=len(parts)) as status:
        for number, part in enumerate(parts):
            status.say(part.command + _time_left(began, number, len(parts)))
            try:
                rows[part.name] = run_bench(part.words)
            except BenchFailed as error:
                rows[part.name], failed[part.name] = error.rows, error.message
            status.step()
    facts = {
        "gcomm": gcomm.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "ranks": str(options["nproc"] or 2),
        "transport": options["transport"],
        **{key: str(value) for key, value in machine().items()},
        **{f"{key} version": value for key, value in versions().items() if key != "gcomm"},
    }
    page = report.page(rows, facts, {part.name: part.command for part in parts}, failed)
    Path(options["html_file"]).write_text(page, encoding="utf-8")
    if options["json_file"]:
        present.write_json(
            [{"part": name, **row} for name, found in rows.items() for row in found], options["json_file"]
        )
    if options["json_file"] != "-":
        click.echo(f"{options['html_file']}: {sum(map(len, rows.values()))} rows of {len(parts)} parts")
    for message in failed.values():
        click.echo(f"Error: {message}", err=True)
    if failed:
        raise SystemExit(1)


def _parts(options: Row) -> list[Part]:
    names = [name.strip() for name in options["collectives"].split(",") if name.strip()]
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown or not names:
        raise click.UsageError(f"--collectives {options['collectives']}: known are {', '.join(COLLECTIVES)}")
    codecs = codec_names(options["codec"])
    ranks = ["--nproc", str(options["nproc"] or 2), "--transport", options["transport"]]
    least = options["minbytes"] or (64 << 10 if options["quick"] else 1 << 10)
    most = options["maxbytes"] or max(least, 1 << 20 if options["quick"] else 64 << 20)
    try:
        sweep(least, most, options["stepfactor"], 0)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    iterations = options["iters"] or (5 if options["quick"] else 20)
    sizes = ["-b", str(least), "-e", str(most), "-f", str(options["stepfactor"]), "-n", str(iterations)]
    sizes += ["-w", str(options["warmup_iters"])]
    more = ["--baseline", options["baseline"]] if options["baseline"] else []
    parts = [
        Part(
            name,
            (name, *ranks, *sizes, *([] if name == "barrier" else ["--codec", ",".join(codecs)]), *more),
        )
        for name in dict.fromkeys(names)
    ]
    if options["nproc"] != 1:
        smallest, largest = LINK_SIZES
        quick = ["-n", "10"] if options["quick"] else []
        parts.append(Part("link", ("link", *ranks, "-b", smallest, "-e", largest, *quick)))
    alone = [name for name in codecs if name != "none"]
    if alone:
        amount = "4M" if options["quick"] else "64M"
        parts.append(Part("codec", ("codec", "-b", amount, "--codec", ",".join(alone))))
    return parts


def _time_left(began: float, done: int, parts: int) -> str:
    """An estimate from the parts that are done; nothing before the first."""
    if done == 0:
        return ""
    left = (time.monotonic() - began) / done * (parts - done)
    return f" (about {left:.0f} s left)" if left < 90 else f" (about {left / 60:.0f} min left)"
