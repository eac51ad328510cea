"""Error against bits: ``python -m benchmarks.gift.rate_distortion FILE.npz --json rows.json --plot rd.png``.

Gradients come from :mod:`benchmarks.gift.capture`, sums from :mod:`benchmarks.gift.engine`; the exact
ones that they are compared with are float64.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.gift.capture import Sample, load
from benchmarks.gift.engine import estimate
from gcomm.cli import plots

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))

from reference import gift as reference_gift

Row = dict[str, Any]

# What gift says of its choice.
CHOICE = ("path", "rank", "predicted_error", "direct_error")
FORMATS = ("fp8_e4m3", "fp8_e5m2", "int8", "int6", "int4", "int3", "int2", "mxfp8", "mxfp4", "nvfp4")


def texts(formats: Iterable[str], ranks: Iterable[int]) -> list[tuple[str, str]]:
    """(family, codec text): direct, hadamard and gift over every format."""
    chosen = list(formats)
    found = [("direct", name) for name in chosen]
    found += [("hadamard", f"hadamard+{name}") for name in chosen]
    found += [("gift", f"gift+{name}") for name in chosen]
    for rank in ranks:
        found += [(f"gift scale r={rank}", f"gift+{name}:mode=scale:rank={rank}") for name in chosen]
        found += [(f"gift split r={rank}", f"gift+{name}:mode=split:rank={rank}") for name in chosen]
        found += [(f"gift rows r={rank}", f"gift+hadamard+{name}:mode=rows:rank={rank}") for name in chosen]
    return found


def measure(samples: Sequence[Sample], wanted: Sequence[tuple[str, str]], age: int, warm: int = 2) -> list[Row]:
    """One row a sample and codec."""
    rows = []
    for sample in samples:
        gradients = [g.astype(np.float64) for g in sample.ranks]
        exact = sum(gradients[1:], gradients[0])
        geometry = reference_gift.OwnGeometry(exact)
        for family, text in wanted:
            total, bits, report = estimate(text, gradients, sample.earlier[age], warm)
            rows.append(
                {
                    "matrix": sample.name,
                    "rows": exact.shape[0],
                    "columns": exact.shape[1],
                    "step": sample.step,
                    "family": family,
                    "codec": text,
                    "bits": _six(bits),
                    "relative_error": _six(reference_gift.relative_error(total, exact)),
                    "own_geometry_error": _six(geometry.error(total)),
                    **{key: report[key] for key in CHOICE if key in report},
                }
            )
    return rows


def _six(value: float) -> float:
    """Six digits are more than the figures are good for."""
    return float(f"{value:.6g}")


def means(rows: Sequence[Row]) -> list[Row]:
    """One row a step and codec: means over the matrices."""
    groups: dict[tuple[int, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["step"], row["family"], row["codec"]), []).append(row)
    figures = ("bits", "relative_error", "own_geometry_error")
    return [
        {"step": step, "family": family, "codec": codec, "matrices": len(group)}
        | {figure: float(np.mean([row[figure] for row in group])) for figure in figures}
        for (step, family, codec), group in groups.items()
    ]


def plot(rows: Sequence[Row], path: str) -> None:
    """Both errors against bits, means over matrices and steps; a line joins the best of each family."""
    figure, axes = plots.new_figure(2, 11.0)
    for number, family in enumerate(dict.fromkeys(row["family"] for row in rows)):
        texts_of = dict.fromkeys(row["codec"] for row in rows if row["family"] == family)
        groups = [[row for row in rows if row["codec"] == text] for text in texts_of]
        for axis, error in zip(axes, ("relative_error", "own_geometry_error"), strict=True):
            points = sorted(
                (float(np.mean([r["bits"] for r in group])), float(np.mean([r[error] for r in group])))
                for group in groups
            )
            axis.plot(*zip(*points, strict=True), "o", color=f"C{number}", markersize=4, alpha=0.7)
            best = [point for i, point in enumerate(points) if point[1] <= min(y for _, y in points[: i + 1])]
            axis.plot(*zip(*best, strict=True), color=f"C{number}", label=family)
    for axis, label in zip(axes, ("relative error", "error in the gradient's own geometry"), strict=True):
        axis.set_yscale("log")
        axis.set_xlabel("wire bits an element, everything counted")
        axis.set_ylabel(label)
        axis.grid(visible=True, which="both", alpha=0.3)
    axes[0].legend()
    plots.save_figure(figure, path)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--formats", default=",".join(FORMATS), show_default=True, metavar="A,B,...")
@click.option("--ranks", default="16,64", show_default=True, metavar="R,...", help="Of gift's basis.")
@click.option("--matrices", default="", metavar="A,B,...", help="Only weights whose names end so.")
@click.option("--step", type=int, help="Only gradients of this step.")
@click.option("--age", type=int, default=5, show_default=True, help="Steps since the basis was refreshed.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Where rows are written.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False), help="Where the plot is written.")
def main(
    file: str, *, formats: str, ranks: str, matrices: str, step: int | None, age: int, **outputs: str | None
) -> None:
    """Measure the gradients in FILE."""
    json_file, plot_file = outputs["json_file"], outputs["plot_file"]
    if plot_file:
        plots.require_matplotlib()
    _, samples = load(file)
    endings = tuple(matrices.split(","))
    samples = [
        s for s in samples if s.name.removesuffix(".weight").endswith(endings) and step in (None, s.step)
    ]
    if not samples:
        raise click.UsageError(f"--matrices, --step: no such gradient in {file}")
    wanted = texts(formats.split(","), [int(rank) for rank in ranks.split(",")])
    rows = measure(samples, wanted, age)
    if json_file:
        Path(json_file).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if plot_file:
        plot(rows, plot_file)
    for row in means(rows):
        click.echo(
            f"step {row['step']:4}  {row['codec']:45} {row['bits']:6.3f} bits  "
            f"relative {row['relative_error']:.4f}  own geometry {row['own_geometry_error']:.3f}"
        )


if __name__ == "__main__":
    main()
