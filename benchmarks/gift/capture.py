"""Real gradients from a real training run: ``python -m benchmarks.gift.capture block|wide FILE.npz``.

Two ranks train the demo's model on the standard library's source text, exactly: one process takes both ranks'
batches in turn and steps on the mean gradient. At the steps asked for, each 2-D block weight's gradient is kept
from both ranks, with what all ranks would hold by then: the reduced gradients of earlier steps, their moving
average, and the moving average of their squares.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcomm.cli.demo_data import load_corpus, training_batch
from gcomm.cli.demo_model import ByteModel, Shape

F32 = NDArray[np.float32]

RANKS = 2
AGES = (1, 5, 10)
MEAN_DECAY, SQUARE_DECAY = 0.9, 0.95
OPTIMISERS = ("adamw", "muon")


@dataclass(frozen=True)
class Plan:
    """One training run: ``sequences`` a rank and step, ``steps`` whose gradients are kept."""

    shape: Shape
    sequences: int
    steps: tuple[int, ...]
    optimiser: str = "adamw"
    rate: float = 2e-3
    matrix_rate: float = 0.02
    rise: int = 20
    seed: int = 0


PLANS = {
    "block": Plan(Shape(width=256, layers=4, heads=4, hidden=688, context=128), 4, (100, 400)),
    "wide": Plan(Shape(width=1024, layers=1, heads=16, hidden=2752, context=128), 4, (40, 120), rate=1e-3),
    "quick": Plan(Shape(width=64, layers=1, heads=4, hidden=176, context=64), 2, (12, 24)),
}


@dataclass
class Sample:
    """One weight at one step.

    Attributes
    ----------
    ranks:
        Gradients, float32 (m, n), one a rank.
    earlier:
        Reduced (summed) gradients of earlier steps, by age in steps.
    mean, square:
        Moving averages of the reduced gradients and of their squares, up to the step before.
    """

    name: str
    step: int
    ranks: list[F32] = field(default_factory=list)
    earlier: dict[int, F32] = field(default_factory=dict)
    mean: F32 | None = None
    square: F32 | None = None

    def arrays(self) -> Iterator[tuple[str, F32]]:
        """All arrays under the names they have in the file."""
        prefix = f"{self.step}/{self.name}"
        for rank, gradient in enumerate(self.ranks):
            yield f"{prefix}/rank{rank}", gradient
        for age, gradient in self.earlier.items():
            yield f"{prefix}/age{age}", gradient
        assert self.mean is not None
        assert self.square is not None
        yield f"{prefix}/mean", self.mean
        yield f"{prefix}/square", self.square


def load(path: str | Path) -> tuple[dict[str, Any], list[Sample]]:
    """The plan, and the samples in order, that :func:`capture` wrote."""
    samples: dict[tuple[str, str], Sample] = {}
    with np.load(path) as stored:
        plan: dict[str, Any] = json.loads(str(stored["plan"]))
        for key in stored.files:
            if key == "plan":
                continue
            step, name, what = key.split("/")
            sample = samples.setdefault((step, name), Sample(name, int(step)))
            if what.startswith("rank"):
                sample.ranks.append(stored[key])
            elif what.startswith("age"):
                sample.earlier[int(what[3:])] = stored[key]
            else:
                setattr(sample, what, stored[key])
    return plan, list(samples.values())


class Muon:
    """Momentum whose matrices are orthogonalised by Newton-Schulz before each step."""

    def __init__(self, parameters: list[Tensor], rate: float) -> None:
        self.parameters, self.rate = parameters, rate
        self.momenta = [torch.zeros_like(p) for p in parameters]

    def step(self, factor: float) -> None:
        """Move against the orthogonalised momentum, by ``factor`` times the rate."""
        with torch.no_grad():
            for parameter, momentum in zip(self.parameters, self.momenta, strict=True):
                gradient = _gradient(parameter)
                momentum.mul_(0.95).add_(gradient)
                rows, columns = parameter.shape
                scale = self.rate * factor * max(1.0, rows / columns) ** 0.5
                parameter.sub_(orthogonalised(gradient + 0.95 * momentum), alpha=scale)


def orthogonalised(x: Tensor) -> Tensor:
    """Newton-Schulz with Muon's coefficients: singular values brought near 1. ``x`` (m, n)."""
    tall = x.shape[0] > x.shape[1]
    x = (x.T if tall else x) / (x.norm() + 1e-12)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


class Run:
    """The model, its optimisers, and what has been seen of its reduced gradients."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.model = ByteModel(plan.shape, plan.seed)
        named = list(self.model.named_parameters())
        self.matrices = {name: p for name, p in named if name.startswith("blocks.") and p.dim() == 2}
        muon = plan.optimiser == "muon"
        others = [p for name, p in named if not (muon and name in self.matrices)]
        self.adam = torch.optim.AdamW(others, lr=plan.rate, betas=(0.9, 0.95))
        self.muon = Muon(list(self.matrices.values()), plan.matrix_rate) if muon else None
        self.mean = {name: torch.zeros_like(p) for name, p in self.matrices.items()}
        self.square = {name: torch.zeros_like(p) for name, p in self.matrices.items()}

    def gradients(self, batches: list[Tensor]) -> tuple[list[dict[str, F32]], float]:
        """Each rank's gradients of the matrices; leaves the mean over ranks in ``.grad``."""
        kept: list[dict[str, F32]] = []
        sums = [torch.zeros_like(parameter) for parameter in self.model.parameters()]
        total = 0.0
        for batch in batches:
            self.model.zero_grad(set_to_none=True)
            loss = self.model.loss(batch)
            torch.autograd.backward(loss)
            total += float(loss.detach()) / len(batches)
            kept.append({name: _gradient(p).numpy().copy() for name, p in self.matrices.items()})
            for total_gradient, parameter in zip(sums, self.model.parameters(), strict=True):
                total_gradient.add_(_gradient(parameter))
        for total_gradient, parameter in zip(sums, self.model.parameters(), strict=True):
            parameter.grad = total_gradient / len(batches)
        return kept, total

    def step(self, number: int) -> None:
        """Update the weights and the averages."""
        for name, parameter in self.matrices.items():
            reduced = _gradient(parameter) * RANKS
            self.mean[name].lerp_(reduced, 1 - MEAN_DECAY)
            self.square[name].lerp_(reduced.square(), 1 - SQUARE_DECAY)
        factor = min(1.0, number / self.plan.rise)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.plan.rate * factor
        self.adam.step()
        if self.muon is not None:
            self.muon.step(factor)


def capture(plan: Plan) -> tuple[list[Sample], list[float]]:
    """Train; returns the samples and the loss of each step."""
    corpus, run = load_corpus(), Run(plan)
    length = plan.shape.context + 1
    samples = {(name, step): Sample(name, step) for step in plan.steps for name in run.matrices}
    losses = []
    for number in range(1, max(plan.steps) + 1):
        batches = [
            training_batch(corpus, plan.seed, number, rank, sequences=plan.sequences, length=length)
            for rank in range(RANKS)
        ]
        kept, loss = run.gradients(batches)
        losses.append(loss)
        for name in run.matrices:
            for age in AGES:
                if number + age in plan.steps:
                    samples[name, number + age].earlier[age] = kept[0][name] + kept[1][name]
            if number in plan.steps:
                sample = samples[name, number]
                sample.ranks = [one[name] for one in kept]
                sample.mean = run.mean[name].numpy().copy()
                sample.square = run.square[name].numpy().copy()
        run.step(number)
    return list(samples.values()), losses


@click.command()
@click.argument("plan_name", metavar="PLAN", type=click.Choice(list(PLANS)))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--optimiser", type=click.Choice(OPTIMISERS), default="adamw", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
def main(plan_name: str, file: Path, optimiser: str, threads: int) -> None:
    """Train, and write the gradients to FILE."""
    torch.set_num_threads(threads)
    plan = Plan(**{**vars(PLANS[plan_name]), "optimiser": optimiser})
    begin = time.perf_counter()
    samples, losses = capture(plan)
    arrays: dict[str, Any] = {key: value for sample in samples for key, value in sample.arrays()}
    facts = {**asdict(plan), "losses": losses, "seconds": time.perf_counter() - begin}
    with file.open("wb") as stream:
        np.savez(stream, plan=np.array(json.dumps(facts)), **arrays)
    click.echo(
        f"{file}: {len(samples)} samples, {plan_name} {optimiser}, loss {np.mean(losses[:5]):.3f} to "
        f"{np.mean(losses[-5:]):.3f}, {facts['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
