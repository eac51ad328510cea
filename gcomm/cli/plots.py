"""Plots of benchmark rows (PNG, matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import numpy.typing as npt

from gcomm.cli.sizes import format_bytes
from gcomm.cli.world import have

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]

_MARKERS = "osD^vP*X"


def require_matplotlib() -> None:
    """Stop with a clear error where a plot is asked for and matplotlib is missing."""
    if not have("matplotlib"):
        raise click.UsageError("--plot needs matplotlib, which is not installed: pip install 'gcomm[bench]'")


def new_figure(columns: int, width: float) -> tuple[Any, Any]:
    """A figure with ``columns`` axes beside each other, ``width`` inches wide, drawn without a display."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(1, columns, figsize=(width, 4.6), layout="constrained")


def save_figure(figure: Any, path: str) -> None:
    """Write the figure as PNG and free it."""
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=130, format="svg" if path.lower().endswith(".svg") else "png")
    plt.close(figure)


def _size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    shown = sizes if len(sizes) <= 9 else sizes[:: -(-len(sizes) // 9)]
    axes.set_xticks(list(shown), [format_bytes(size) for size in shown], rotation=35, ha="right")
    # Only here: a time's minor ticks are all that it has where times lie within a decade.
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("size")
    axes.grid(visible=True, alpha=0.3)


def _lines(
    axes: Axes, rows: Sequence[Row], label: str, *, y: str, scale: float = 1.0, style: str = "-"
) -> None:
    for number, name in enumerate(dict.fromkeys(row[label] for row in rows)):
        points = sorted((row["bytes"], row[y] * scale) for row in rows if row[label] == name and row["bytes"])
        baseline = str(name).startswith("baseline")
        axes.plot(
            [point[0] for point in points],
            [point[1] for point in points],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=5,
            color="0.35" if baseline else f"C{number}",
            linestyle="--" if baseline else style,
            label=str(name),
        )


def plot_collective(rows: Sequence[Row], path: str) -> None:
    """Time and bus bandwidth against size, one line a codec."""
    figure, (left, right) = new_figure(2, 11.0)
    sizes = sorted({row["bytes"] for row in rows if row["bytes"] > 0})
    _lines(left, rows, "codec", y="time_us", scale=1e-3)
    left.set_yscale("log")
    left.set_ylabel("time (ms)")
    _lines(right, rows, "codec", y="busbw")
    right.set_ylabel("bus bandwidth (GB/s of uncompressed data)")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        _size_axis(axes, sizes)
    left.legend()
    first = next((row for row in rows if not row["codec"].startswith("baseline")), rows[0])
    figure.suptitle(
        f"{first['collective']}, {first['world_size']} ranks, {first['transport']}, {first['dtype']}",
        fontsize=12,
    )
    save_figure(figure, path)


def plot_codec(rows: Sequence[Row], path: str) -> None:
    """Encode, decode and decode_accumulate of each codec, with memcpy for comparison."""
    figure, axes = new_figure(1, max(7.0, 2.0 + 0.75 * len(rows)))
    parts = (
        ("encode", "encode_gbps"),
        ("decode", "decode_gbps"),
        ("decode_accumulate", "decode_accumulate_gbps"),
    )
    for number, (label, key) in enumerate(parts):
        axes.bar(
            [i + (number - 1) * 0.27 for i in range(len(rows))], [row[key] for row in rows], 0.25, label=label
        )
    axes.plot(range(len(rows)), [row["memcpy_gbps"] for row in rows], "k_", markersize=26, label="memcpy")
    several = len({row["isa"] for row in rows}) > 1
    names = [f"{row['codec']}\n{row['isa']}" if several else row["codec"] for row in rows]
    axes.set_xticks(range(len(rows)), names, rotation=35, ha="right")
    axes.set_ylabel("GB/s of fp32, one thread")
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.set_title(f"codecs on {format_bytes(rows[0]['bytes'])} of fp32")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.28))
    save_figure(figure, path)


def plot_link(rows: Sequence[Row], path: str) -> None:
    """Latency and bandwidth of the bare transport against message size, one line a pair of ranks."""
    figure, (left, right) = new_figure(2, 11.0)
    named = [{**row, "pair": f"{row['initiator']} to {row['peer']}"} for row in rows]
    sizes = sorted({row["bytes"] for row in rows})
    _lines(left, named, "pair", y="latency_us")
    left.set_yscale("log")
    left.set_ylabel("half a round trip (us)")
    for kind, key, style in (("one way", "one_way_gbps", "-"), ("both ways", "bidirectional_gbps", ":")):
        _lines(right, [{**row, "line": f"{row['pair']}, {kind}"} for row in named], "line", y=key, style=style)
    right.set_ylabel("bandwidth (GB/s)")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        _size_axis(axes, sizes)
        axes.legend()
    figure.suptitle(f"link, {rows[0]['world_size']} ranks, {rows[0]['transport']}", fontsize=12)
    save_figure(figure, path)


def plot_plan(rows: Sequence[Row], path: str) -> None:
    """Predicted times, against ranks where several are asked for, else against size."""
    figure, axes = new_figure(1, 8.0)
    ranks = sorted({row["world_size"] for row in rows})
    over = "world_size" if len(ranks) > 1 else "bytes"
    largest = max(row["bytes"] for row in rows)
    shown = [row for row in rows if over == "bytes" or row["bytes"] == largest]
    names = list(dict.fromkeys(row["codec"] for row in shown))
    for way, style in (("flat", "-"), ("two_level", "--")):
        for number, name in enumerate(names):
            line = sorted(
                (row[over], row["time_us"] * 1e-3)
                for row in shown
                if row["codec"] == name and row["algorithm"] == way
            )
            if line:
                label = name if way == "flat" else f"{name}, two levels"
                axes.plot(
                    *zip(*line, strict=True),
                    style,
                    marker=_MARKERS[number % 8],
                    color=f"C{number}",
                    label=label,
                )
    axes.set_yscale("log")
    axes.set_ylabel("predicted time (ms)")
    if over == "bytes":
        _size_axis(axes, sorted({row["bytes"] for row in shown}))
    else:
        axes.set_xscale("log")
        axes.set_xlabel("ranks")
        axes.grid(visible=True, alpha=0.3)
    axes.legend()
    axes.set_title(
        "all_reduce" + (f" of {format_bytes(largest)}" if over == "world_size" else f", {ranks[0]} ranks")
    )
    save_figure(figure, path)


def plot_link_matrix(parts: Sequence[tuple[str, int, npt.NDArray[np.float64]]], title: str, path: str) -> None:
    """Heat maps of all pairs of ranks; each part is what is shown, the message's bytes, and (ranks, ranks)."""
    figure, panels = new_figure(len(parts), 5.0 * len(parts))
    for axes, (label, nbytes, pairs) in zip(panels, parts, strict=True):
        image = axes.imshow(pairs, cmap="viridis_r" if "(us)" in label else "viridis")
        figure.colorbar(image, ax=axes, shrink=0.8)
        axes.set_title(f"{label}, {format_bytes(nbytes)}", fontsize=10)
        axes.set_xticks(range(len(pairs)))
        axes.set_yticks(range(len(pairs)))
        axes.set_xlabel("rank")
        if len(pairs) <= 16:
            for i, j in np.argwhere(~np.isnan(pairs)):
                red, green, blue, _ = image.cmap(image.norm(pairs[i, j]))
                ink = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
                axes.text(j, i, f"{pairs[i, j]:.3g}", ha="center", va="center", fontsize=9, color=ink)
    figure.suptitle(title, fontsize=12)
    save_figure(figure, path)
