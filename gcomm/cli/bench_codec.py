"""``gcomm bench codec``: one thread's speed of every codec, against memcpy in the same run."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from rich.table import Table

import gcomm
from gcomm.cli import oracle, plots, present
from gcomm.cli.bench import BYTES, codec_names, failures_end_the_command, output_options, verifiable
from gcomm.cli.buffers import SLICE
from gcomm.cli.sizes import format_bytes

PARTS = ("encode", "decode", "decode_accumulate", "memcpy")
EXTRA_CODECS = ("hadamard+int8", "hadamard+int4")


@dataclass
class _Subject:
    """One codec on one instruction set."""

    codec: gcomm.Codec
    isa: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    wrong: int = 0


class _Arena:
    """The memory that all codecs of a run share, touched once."""

    def __init__(self, count: int, encoded_bytes: int) -> None:
        self.source = np.empty(count, np.float32)
        block = np.random.default_rng(2026).standard_normal(min(count, SLICE), np.float32)
        for start in range(0, count, SLICE):
            part = self.source[start : start + SLICE]
            # Another factor in each piece, so that scales differ along the way.
            np.multiply(block[: part.size], np.float32(1.0 + start / count), out=part)
        self.encoded = np.zeros(encoded_bytes, np.uint8)
        self.result = np.zeros(count, np.float32)

    def memcpy(self) -> None:
        ctypes.memmove(self.result.ctypes.data, self.source.ctypes.data, self.source.nbytes)


def _time(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _round(subject: _Subject, arena: _Arena, *, keep: bool) -> None:
    codec, used = subject.codec, codec_bytes(subject.codec, arena.source.size)
    encoded = arena.encoded[:used]
    actions: dict[str, Callable[[], object]] = {
        "encode": lambda: codec.encode_into(arena.source, encoded),
        "decode": lambda: codec.decode(encoded, arena.result),
        "decode_accumulate": lambda: codec.decode_accumulate(encoded, arena.result),
        "memcpy": arena.memcpy,
    }
    for part, action in actions.items():
        seconds = _time(action)
        if keep:
            subject.seconds[part].append(seconds)


def codec_bytes(codec: gcomm.Codec, count: int) -> int:
    """Encoded bytes of ``count`` elements."""
    return int(codec.wire_bytes(count))


def _verify(subject: _Subject, arena: _Arena) -> None:
    """Counts elements of one encode and decode, and of one accumulation, that break the format's bound."""
    encoded = arena.encoded[: codec_bytes(subject.codec, arena.source.size)]
    subject.codec.encode_into(arena.source, encoded)
    rule = oracle.Rule.parse(subject.codec.spec)
    for operation, base in ((subject.codec.decode, 0.0), (subject.codec.decode_accumulate, 1.0)):
        arena.result.fill(base)
        operation(encoded, arena.result)
        for start in range(0, arena.source.size, SLICE):
            exact, bound = oracle.moved(arena.source[start : start + SLICE], rule, "float")
            if base:
                bound = bound + (np.abs(exact) + bound + base) * 2.0**-23
            error = np.abs(arena.result[start : start + SLICE].astype(np.float64) - base - exact)
            subject.wrong += _count(~(error <= bound))


def _count(flags: npt.NDArray[np.bool_]) -> int:
    return int(flags.sum())


def _isas(choice: str | None) -> list[str | None]:
    """Instruction sets to measure; None is the best that this machine has."""
    rows = gcomm.isas()
    if choice is None:
        return [None]
    if choice == "all":
        return [row.name for row in rows if row.available]
    row = next((row for row in rows if row.name == choice), None)
    if row is None:
        raise click.UsageError(f"--isa {choice}: known are {', '.join(row.name for row in rows)}, and all")
    if not row.available:
        raise click.UsageError(f"--isa {choice} is not available: {row.reason}")
    return [row.name]


@click.command()
@click.option("-b", "--bytes", "size", type=BYTES, default="256M", show_default=True, help="Bytes of fp32.")
@click.option(
    "-n", "--iters", type=click.IntRange(min=1), default=7, show_default=True, help="Rounds over all codecs."
)
@click.option(
    "-w", "--warmup_iters", type=click.IntRange(min=0), default=1, show_default=True, help="Rounds before."
)
@click.option(
    "--codec", metavar="A,B,...", help="Codecs.  [default: every format, and Hadamard with int8 and int4]"
)
@click.option("--isa", metavar="NAME|all", help="Instruction set.  [default: the best that this machine has]")
@output_options
def codec(**options: Any) -> None:
    """Measure encode, decode and decode_accumulate of each codec, one thread, against memcpy.

    In each round every codec does each operation once, with a memcpy of the same fp32 bytes beside them; the
    figures are medians over rounds, GB/s = 10^9 bytes of fp32 a second, also for memcpy.
    """
    present.require_writable(options["json_file"], options["plot"])
    if options["plot"]:
        plots.require_matplotlib()
    count, warmup, rounds = options["size"] // 4, options["warmup_iters"], options["iters"]
    if count == 0:
        raise click.UsageError("-b must be at least 4, one fp32 element")
    names = (
        [*(row.name for row in gcomm.codecs()), *EXTRA_CODECS]
        if options["codec"] is None
        else verifiable(codec_names(options["codec"]))
    )
    if "none" in names:
        raise click.UsageError("--codec none: there is nothing to encode; fp32 is the codec that copies")
    chosen = _isas(options["isa"])
    subjects = [
        _Subject(made, made.isa) for name in names for each in chosen for made in [gcomm.Codec(name, isa=each)]
    ]
    arena = _Arena(count, max(codec_bytes(subject.codec, count) for subject in subjects))
    with (
        failures_end_the_command(),
        present.progress(total=len(subjects) * (1 + warmup + rounds)) as status,
    ):
        for subject in subjects:
            status.say(f"verify {subject.codec.spec}")
            _verify(subject, arena)
            status.step()
        for number in range(-warmup, rounds):
            for subject in subjects:
                status.say(f"time {subject.codec.spec}")
                _round(subject, arena, keep=number >= 0)
                status.step()
    rows = [_row(subject, size=count * 4) for subject in subjects]
    if options["json_file"] != "-":
        present.table_console().print(_table(rows))
    if options["json_file"]:
        present.write_json(rows, options["json_file"])
    if options["plot"]:
        plots.plot_codec(rows, options["plot"])
    wrong = sum(subject.wrong for subject in subjects)
    if wrong:
        blamed = ", ".join(subject.codec.spec for subject in subjects if subject.wrong)
        click.echo(f"gcomm: {wrong} elements break their format's bound ({blamed})", err=True)
        raise SystemExit(1)


def _row(subject: _Subject, size: int) -> present.Row:
    speeds = {f"{part}_gbps": size / statistics.median(subject.seconds[part]) / 1e9 for part in PARTS}
    return {"codec": subject.codec.spec, "isa": subject.isa, "bytes": size, **speeds}


def _table(rows: list[present.Row]) -> Table:
    table = Table(
        title=f"gcomm {gcomm.__version__} codecs on {format_bytes(rows[0]['bytes'])} of fp32, one thread, GB/s"
    )
    for heading in ("codec", "isa"):
        table.add_column(heading)
    for part in PARTS:
        table.add_column(part, justify="right")
        if part != "memcpy":
            table.add_column("/ memcpy", justify="right", style="dim")
    for row in rows:
        cells = []
        for part in PARTS:
            speed = row[f"{part}_gbps"]
            cells.append(f"{speed:.2f}")
            if part != "memcpy":
                cells.append(f"{speed / row['memcpy_gbps']:.2f}")
        table.add_row(row["codec"], row["isa"], *cells)
    return table
