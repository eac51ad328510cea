"""How results reach people and files: nccl-tests' table, JSON, plots, and progress on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Row = dict[str, Any]

HEADINGS = (
    ("size", "(B)", 12),
    ("count", "(elements)", 12),
    ("type", "", 9),
    ("redop", "", 6),
    ("time", "(us)", 11),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("#wrong", "", 7),
)
EXTREMES = (("min", "(us)", 11), ("max", "(us)", 11))
MORE = (("wire", "(B)", 12), ("ratio", "", 7), ("rel_err", "", 10))


class CollectiveTable:
    """Rows of ``gcomm bench COLLECTIVE`` as they come, in nccl-tests' columns."""

    def __init__(self, op: str, names: Sequence[str], *, extremes: bool) -> None:
        self._op = op
        self._columns = HEADINGS + (EXTREMES if extremes else ())
        self._extremes = extremes
        self._width = max(7, *map(len, names))

    def header(self) -> str:
        """Two comment lines: names and units."""
        return "\n".join(
            "#"
            + " ".join(f"{heading[line]:>{heading[2]}}" for heading in self._columns)[1:]
            + f"  {'codec' if line == 0 else '':<{self._width}}"
            + "".join(f" {heading[line]:>{heading[2]}}" for heading in MORE)
            for line in (0, 1)
        )

    def line(self, row: Row) -> str:
        """One row."""
        cells = [
            f"{row['bytes']:>12}",
            f"{row['count']:>12}",
            f"{row['dtype']:>9}",
            f"{self._op:>6}",
            f"{row['time_us']:>11.2f}",
            f"{row['algbw']:>8.3f}",
            f"{row['busbw']:>8.3f}",
            f"{row['wrong']:>7}",
        ]
        if self._extremes:
            cells += [f"{row['time_us_min']:>11.2f}", f"{row['time_us_max']:>11.2f}"]
        ratio = f"{row['raw_bytes'] / row['wire_bytes']:.2f}" if row["raw_bytes"] and row["wire_bytes"] else "-"
        cells.append(
            f" {row['codec']:<{self._width}} {row['wire_bytes']:>12} {ratio:>7} {row['rel_err']:>10.2e}"
        )
        return " ".join(cells)


def require_writable(*targets: str | None) -> None:
    """Stop before the run where a file that is to be written after it could not be."""
    for target in targets:
        if target in (None, "", "-"):
            continue
        path = Path(str(target))
        if path.is_dir():
            raise click.UsageError(f"{path} is a folder, and no file can be written there")
        if not path.parent.is_dir():
            raise click.UsageError(f"{path}: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise click.UsageError(f"{path} may not be written")


def write_json(rows: Any, target: str) -> None:
    """Write ``rows`` to the file ``target``, or to stdout where that is ``"-"``."""
    text = json.dumps(rows, indent=1) + "\n"
    if target == "-":
        click.echo(text, nl=False)
    else:
        Path(target).write_text(text, encoding="utf-8")


class Status:
    """Progress on stderr; where stderr is no terminal, only its notes are shown."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=total)

    def say(self, text: str) -> None:
        """What is going on now."""
        self._progress.update(self._task, description=text)

    def note(self, text: str) -> None:
        """A line that stays."""
        self._progress.console.print(text, highlight=False, soft_wrap=True)

    def step(self) -> None:
        """One more part is done."""
        self._progress.advance(self._task)


@contextlib.contextmanager
def progress(total: int | None) -> Iterator[Status]:
    """A progress bar over ``total`` parts (None: a spinner) while the block runs."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # Lines printed meanwhile go above the bar, but only where both are on a terminal: a redirected stdout stays
    # as it is.
    redirect = console.is_terminal and sys.stdout.isatty()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, redirect_stdout=redirect
    ) as bar:
        yield Status(bar, total)


def table_console(file: IO[str] | None = None) -> Console:
    """A console for rich tables; wide where stdout is a file or a pipe, so that nothing is cut."""
    stream = file or sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 160)
