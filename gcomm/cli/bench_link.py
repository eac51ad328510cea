"""``gcomm bench link``: latency and bandwidth of the bare transport between ranks, no codec, no header."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import click
import numpy as np
from rich.table import Table

import gcomm
from gcomm.cli import plots, present
from gcomm.cli.bench import (
    BYTES,
    failures_end_the_command,
    number_of_ranks,
    output_options,
    rank_options,
    require_transport,
    transport_words,
)
from gcomm.cli.launch import Emit, Message, Ranks, run_ranks
from gcomm.cli.sizes import format_bytes, sweep
from gcomm.cli.world import World

PATTERNS = ("ping_pong", "one_way", "bidirectional")


def measure(world: World, config: Message, emit: Emit) -> None:
    """Probe every pair of ranks, one after the other; the others wait. Rank 0 emits the rows."""
    for first, second in combinations(range(world.size), 2):
        for size in config["sizes"]:
            emit({"progress": f"ranks {first} and {second}, {format_bytes(size)}"})
            mine = np.zeros((len(PATTERNS), config["iterations"]))
            if world.rank in (first, second):
                mine = _probe(world, first, second, size, config)
            world.barrier()
            emit({"row": _row(world, (first, second), size, world.gather(mine)[first])})


def _probe(
    world: World, first: int, second: int, size: int, config: Message
) -> np.ndarray[Any, np.dtype[np.float64]]:
    peer, initiator = (second, True) if world.rank == first else (first, False)
    seconds = []
    for pattern in PATTERNS:
        for count in (config["warmup"], config["iterations"]):
            if count:
                times = world.comm.link_probe(peer, initiator, pattern, size, count)
        seconds.append(np.asarray(times, np.float64) if initiator else np.zeros(config["iterations"]))
    return np.stack(seconds)


def _row(
    world: World, pair: tuple[int, int], size: int, seconds: np.ndarray[Any, np.dtype[np.float64]]
) -> dict[str, Any]:
    round_trip, one_way, both_ways = (float(np.median(times)) for times in seconds)
    return {
        "transport": world.comm.transport,
        "medium": world.media,
        "world_size": world.size,
        "initiator": pair[0],
        "peer": pair[1],
        "bytes": size,
        "latency_us": round_trip / 2 * 1e6,
        "latency_us_min": float(seconds[0].min()) / 2 * 1e6,
        "latency_us_max": float(seconds[0].max()) / 2 * 1e6,
        "one_way_gbps": size / one_way / 1e9,
        "bidirectional_gbps": 2 * size / both_ways / 1e9,
    }


@click.command()
@click.option("-b", "--minbytes", type=BYTES, default="8", show_default=True, help="Smallest message.")
@click.option("-e", "--maxbytes", type=BYTES, default="16M", show_default=True, help="Largest message.")
@click.option(
    "-f", "--stepfactor", type=click.IntRange(min=1), default=8, show_default=True, help="Factor between sizes."
)
@click.option(
    "-n", "--iters", type=click.IntRange(min=1), default=50, show_default=True, help="Exchanges a size."
)
@click.option(
    "-w", "--warmup_iters", type=click.IntRange(min=0), default=5, show_default=True, help="Exchanges before."
)
@rank_options
@output_options
def link(**options: Any) -> None:
    """Measure the bare transport between every pair of ranks.

    Latency is half of a ping-pong's round trip; bandwidth is that of one message there and a byte back (one
    way), and of one message in each direction at once (both ways). Medians; GB/s = 10^9 bytes a second. With
    more than two ranks, matrices of all pairs follow, and --plot draws them as heat maps.
    """
    transport = options["transport"]
    require_transport(transport)
    present.require_writable(options["json_file"], options["plot"])
    if options["plot"]:
        plots.require_matplotlib()
    ranks = number_of_ranks(options["nproc"], transport)
    if ranks == 1:
        raise click.UsageError("a link has two ends: --nproc must be at least 2")
    try:
        sizes = sweep(options["minbytes"], options["maxbytes"], options["stepfactor"], 0)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if sizes[0] < 1:
        raise click.UsageError("-b must be at least 1")
    rows: list[present.Row] = []
    with present.progress(total=None) as status:

        def on_message(message: Message) -> None:
            if "row" in message:
                rows.append(message["row"])
            else:
                status.say(message["progress"])

        with failures_end_the_command():
            run_ranks(
                "gcomm.cli.bench_link:measure",
                {"sizes": sizes, "iterations": options["iters"], "warmup": options["warmup_iters"]},
                Ranks(transport, ranks),
                on_message,
            )
    if rows:
        _show(rows, options["json_file"], options["plot"])


def matrix(rows: Sequence[present.Row], key: str, nbytes: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A figure of messages of one size between all pairs, (ranks, ranks); NaN on the diagonal."""
    size = rows[0]["world_size"]
    pairs = np.full((size, size), np.nan)
    for row in rows:
        if row["bytes"] == nbytes:
            pairs[row["initiator"], row["peer"]] = pairs[row["peer"], row["initiator"]] = row[key]
    return pairs


def _matrix_table(rows: list[present.Row], key: str, nbytes: int, title: str) -> Table:
    """All pairs at a glance; the worst is red."""
    pairs = matrix(rows, key, nbytes)
    worst = np.nanmax(pairs) if key == "latency_us" else np.nanmin(pairs)
    table = Table(title=f"{title}, {format_bytes(nbytes)}")
    for heading in ("rank", *map(str, range(len(pairs)))):
        table.add_column(heading, justify="right")
    for rank, values in enumerate(pairs):
        texts = ["-" if np.isnan(value) else f"{value:.3g}" for value in values]
        cells = [
            f"[red]{text}[/red]" if value == worst else text for text, value in zip(texts, values, strict=True)
        ]
        table.add_row(str(rank), *cells)
    return table


def _show(rows: list[present.Row], json_file: str | None, plot: str | None) -> None:
    if json_file != "-":
        first = rows[0]
        table = Table(
            title=f"gcomm {gcomm.__version__} link, {first['world_size']} ranks, "
            f"transport {transport_words(first['transport'], first['medium'])}"
        )
        for heading in ("ranks", "bytes", "latency us", "min", "max", "one way GB/s", "both ways GB/s"):
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(
                f"{row['initiator']}-{row['peer']}",
                str(row["bytes"]),
                *(f"{row[key]:.1f}" for key in ("latency_us", "latency_us_min", "latency_us_max")),
                *(f"{row[key]:.3f}" for key in ("one_way_gbps", "bidirectional_gbps")),
            )
        console = present.table_console()
        console.print(table)
        if first["world_size"] > 2:
            sizes = [row["bytes"] for row in rows]
            console.print(_matrix_table(rows, "latency_us", min(sizes), "latency us"))
            console.print(_matrix_table(rows, "one_way_gbps", max(sizes), "one way GB/s"))
    if json_file:
        present.write_json(rows, json_file)
    if plot:
        plot_rows(rows, plot)


def plot_rows(rows: Sequence[present.Row], path: str) -> None:
    """Curves of a pair; of more ranks, heat maps of all pairs."""
    if rows[0]["world_size"] == 2:
        plots.plot_link(rows, path)
        return
    least, most = min(row["bytes"] for row in rows), max(row["bytes"] for row in rows)
    plots.plot_link_matrix(
        [
            ("half a round trip (us)", least, matrix(rows, "latency_us", least)),
            ("one way (GB/s)", most, matrix(rows, "one_way_gbps", most)),
            ("both ways (GB/s)", most, matrix(rows, "bidirectional_gbps", most)),
        ],
        f"link, {rows[0]['world_size']} ranks, {rows[0]['transport']}",
        path,
    )
