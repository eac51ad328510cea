"""What a codec costs in training: ``python -m benchmarks.gift.training --optimiser muon --json rows.json``.

The demo's model at width 128, two blocks, on the standard library's source text. Two ranks' gradients are taken
in turn in one process and reduced by two communicators of one process; all ranks hold the same bits afterwards,
so that one model serves both. Runs of one seed start from the same weights and take the same batches: only the
codec differs, and differences are paired by seed. A run that is already in the file is not made again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from benchmarks.gift.capture import OPTIMISERS, RANKS, Muon
from benchmarks.gift.engine import Ranks
from benchmarks.gift.figures import EXACT, Row, losses_of, summary
from gcomm.cli import plots
from gcomm.cli.demo_data import Corpus, evaluation_batches, load_corpus, training_batch
from gcomm.cli.demo_model import ByteModel, Shape

CODECS = {
    "muon": (
        EXACT,
        "int3",
        "gift+int3:mode=scale:rank=16",
        "gift+int3",
        "nvfp4",
        "gift+nvfp4",
    ),
    "adamw": (
        EXACT,
        "int3",
        "gift+int3",
        "gift+int3:geometry=factored",
        "nvfp4",
        "gift+nvfp4",
    ),
}
SHAPE = Shape(width=128, layers=2, heads=4, hidden=344, context=128)


@dataclass(frozen=True)
class Plan:
    """One run: sequences a rank and step, learning rates at their peak, sequences of the evaluation."""

    optimiser: str
    codec: str
    seed: int
    steps: int
    sequences: int = 2
    rate: float = 3e-3
    matrix_rate: float = 0.02
    evaluation_sequences: int = 256


def train(plan: Plan, corpus: Corpus) -> Row:
    """One run's losses and bytes."""
    begin = time.perf_counter()
    model = ByteModel(SHAPE, plan.seed)
    named = dict(model.named_parameters())
    matrices = [p for name, p in named.items() if name.startswith("blocks.") and p.dim() == 2]
    muon = Muon(list[Tensor](matrices), plan.matrix_rate) if plan.optimiser == "muon" else None
    taken = {id(p) for p in matrices} if muon is not None else set()
    adam = torch.optim.AdamW([p for p in named.values() if id(p) not in taken], lr=plan.rate, betas=(0.9, 0.95))
    exchange, wire_bytes = Ranks(plan.codec), []
    losses = []
    for step in range(1, plan.steps + 1):
        gradients, loss = [], 0.0
        for rank in range(RANKS):
            model.zero_grad(set_to_none=True)
            value = model.loss(
                training_batch(
                    corpus, plan.seed, step, rank, sequences=plan.sequences, length=SHAPE.context + 1
                )
            )
            torch.autograd.backward(value)
            loss += float(value.detach()) / RANKS
            gradients.append([p.grad for p in named.values() if p.grad is not None])
        exchange.all_reduce(gradients, list(named), "avg")
        wire_bytes.append(exchange.wire_bytes)
        if not all(torch.equal(a, b) for a, b in zip(*gradients, strict=True)):
            raise RuntimeError(f"{plan.codec}: the ranks hold different sums at step {step}")
        factor = min(1.0, step / 25) * (0.55 + 0.45 * math.cos(math.pi * step / plan.steps))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in adam.param_groups:
            group["lr"] = plan.rate * factor
        adam.step()
        if muon is not None:
            muon.step(factor)
        losses.append(loss)
    exchange.close()
    return {
        "optimiser": plan.optimiser,
        "codec": plan.codec,
        "seed": plan.seed,
        "steps": plan.steps,
        "eval_loss": evaluate(model, corpus, plan),
        "train_loss": float(np.mean(losses[-20:])),
        "wire_bytes_per_step": int(np.median(wire_bytes)),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def evaluate(model: ByteModel, corpus: Corpus, plan: Plan) -> float:
    """Mean loss, nats a byte, over the evaluation text."""
    total, length = plan.evaluation_sequences, SHAPE.context + 1
    batches = evaluation_batches(corpus, 0, 1, total=total, length=length, sequences=16)
    with torch.no_grad():
        return sum(float(model.loss(batch)) * len(batch) for batch in batches) / total


def show(rows: Sequence[Row]) -> None:
    """The summary, as text."""
    for optimiser in OPTIMISERS:
        for row in summary(rows, optimiser):
            line = (
                f"{optimiser:6} {row['codec']:32} {row['seeds']} seeds  {row['eval_loss']:.4f}  "
                f"over fp32 {row['over_fp32_percent']:+.2f} +- {row['over_fp32_half']:.2f} %"
            )
            if "closed" in row:
                line += (
                    f"  under direct {row['under_direct_percent']:+.2f} +- {row['under_direct_half']:.2f} %"
                    f"  closes {100 * row['closed']:.0f} % of the gap"
                )
            click.echo(line)


def plot(rows: Sequence[Row], optimiser: str, path: str) -> None:
    """Per cent over fp32 of each seed and codec, with means and 95 % intervals."""
    figure, axes = plots.new_figure(1, 7.0)
    exact = losses_of(rows, optimiser, EXACT)
    shown = [row for row in summary(rows, optimiser) if row["codec"] != EXACT]
    for place, row in enumerate(shown):
        ours = losses_of(rows, optimiser, row["codec"])
        over = [100 * (ours[seed] / exact[seed] - 1) for seed in sorted(ours)]
        axes.plot([place + 0.15] * len(over), over, "o", color="C1", markersize=4, alpha=0.7)
        axes.errorbar(place, row["over_fp32_percent"], row["over_fp32_half"], fmt="s", color="C0", capsize=4)
    axes.axhline(0, color="0.3", linewidth=1)
    axes.set_xticks(range(len(shown)), [row["codec"].replace(":", "\n", 1) for row in shown])
    axes.set_ylabel("evaluation loss over fp32's of the same seed, %")
    axes.set_title(f"{optimiser}: seeds (circles), mean and 95 % interval")
    axes.grid(visible=True, axis="y", alpha=0.3)
    plots.save_figure(figure, path)


@click.command()
@click.option("--optimiser", type=click.Choice(OPTIMISERS), default="muon", show_default=True)
@click.option("--codecs", metavar="A,B,...", help="Default: the optimiser's own list.")
@click.option("--seeds", default="0,1,2,3,4", show_default=True, metavar="A,B,...")
@click.option("--steps", type=click.IntRange(min=30), default=300, show_default=True)
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False), help="Where a plot is written.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), required=True)
def main(
    *, optimiser: str, codecs: str | None, seeds: str, steps: int, plot_file: str | None, json_file: Path
) -> None:
    """Train what FILE does not hold yet, one run after the other; FILE is written after each."""
    torch.set_num_threads(1)
    corpus = load_corpus()
    text = json_file.read_text(encoding="utf-8") if json_file.exists() else ""
    rows: list[Row] = json.loads(text) if text else []
    done = {(row["optimiser"], row["codec"], row["seed"], row["steps"]) for row in rows}
    for seed in map(int, seeds.split(",")):
        for codec in codecs.split(",") if codecs else CODECS[optimiser]:
            if (optimiser, codec, seed, steps) in done:
                continue
            rows.append(train(Plan(optimiser, codec, seed, steps), corpus))
            json_file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            click.echo(f"seed {seed}  {codec:34} {rows[-1]['eval_loss']:.4f}  {rows[-1]['seconds']} s")
    show(rows)
    if plot_file:
        plot(rows, optimiser, plot_file)


if __name__ == "__main__":
    main()
