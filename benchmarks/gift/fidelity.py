"""How faithful gift's sums are: ``python -m benchmarks.gift.fidelity block FILE.npz --json rows.json``.

The gradients of :mod:`benchmarks.gift.capture`'s plan, made first where FILE is not there yet, summed by the
library with the codecs that docs/gift.md compares.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from benchmarks.gift.capture import OPTIMISERS, load
from benchmarks.gift.rate_distortion import Row, means, measure

DIRECT = ("nvfp4", "fp8_e4m3", "int6", "hadamard+int4")
CODECS = {
    "block": (
        *DIRECT,
        "gift+nvfp4:mode=scale:rank=16",
        "gift+nvfp4:mode=scale:rank=16:alpha=0.5",
        "gift+nvfp4:mode=split:rank=16",
        "gift+nvfp4:mode=rows:rank=16",
        "gift+nvfp4:mode=rows:rank=32",
        "gift+hadamard+int4:mode=rows:rank=32",
        "gift+nvfp4:mode=scale",
        "gift+nvfp4",
        "gift+hadamard+int4",
        "gift+hadamard+int3",
    ),
    "wide": (
        *DIRECT,
        "gift+nvfp4:mode=scale:rank=64",
        "gift+nvfp4:mode=split:rank=32",
        "gift+nvfp4:mode=split:rank=64",
        "gift+nvfp4:mode=rows:rank=64",
        "gift+hadamard+int4:mode=rows:rank=64",
        "gift+hadamard+int4:mode=rows:rank=128",
        "gift+hadamard+int3:mode=rows:rank=128",
        "gift+hadamard+int4:mode=split:rank=64",
        "gift+nvfp4",
        "gift+hadamard+int4",
        "gift+hadamard+int3",
    ),
}
# One of each shape, and of those of the same shape the first and the last of attention.
WIDE_MATRICES = ("wq", "wo", "w_up", "w_down")


@click.command()
@click.argument("plan", type=click.Choice(list(CODECS)))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--codecs", metavar="A,B,...", help="Default: the plan's own list.")
@click.option("--optimiser", type=click.Choice(OPTIMISERS), default="adamw", show_default=True)
@click.option("--age", type=int, default=5, show_default=True, help="Steps since the basis was refreshed.")
@click.option(
    "--warm", type=click.IntRange(min=1), default=2, show_default=True, help="Calls with the reference."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), required=True)
def main(
    plan: str, file: Path, *, codecs: str | None, optimiser: str, age: int, warm: int, json_file: Path
) -> None:
    """Measure the gradients in FILE."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.gift.capture", plan, str(file), "--optimiser", optimiser]
        subprocess.run(command, check=True)
    _, samples = load(file)
    if plan == "wide":
        samples = [s for s in samples if s.name.removesuffix(".weight").endswith(WIDE_MATRICES)]
    wanted = [(text, text) for text in (codecs.split(",") if codecs else CODECS[plan])]
    rows: list[Row] = []
    for sample in samples:
        rows += measure([sample], wanted, age, warm)
        click.echo(f"{sample.name} at step {sample.step}", err=True)
    json_file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for row in means(rows):
        click.echo(
            f"step {row['step']:4}  {row['codec']:42} {row['bits']:6.3f} bits  "
            f"relative {row['relative_error']:.4f}  own geometry {row['own_geometry_error']:.3f}"
        )


if __name__ == "__main__":
    main()
