"""What each rank does in ``gcomm demo``: train one model a codec, side by side, on the same batches.

All models start from the same weights and take the same batches; only their gradients travel differently. They
train in turn, a step each, so that their times a step compare under the same conditions.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import gcomm
from gcomm.cli.demo_data import Corpus, evaluation_batches, load_corpus, training_batch
from gcomm.cli.demo_model import ByteModel, Shape
from gcomm.cli.launch import Emit, Message
from gcomm.cli.world import World

EXACT = "fp32"


@dataclass(frozen=True)
class Plan:
    """The arguments of a run; plain values, so that it travels as JSON."""

    codecs: list[str]
    steps: int
    sequences: int
    evaluations: int
    evaluation_sequences: int
    seed: int
    shape: dict[str, int]
    peak_rate: float = 1.5e-3


class Learner:
    """One model, its optimiser, and how its gradients travel."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name = name
        # An object of its own keeps its own state: the same parameter names in several models do not meet.
        self.codec = None if name == EXACT else gcomm.codec(name)
        self.model = ByteModel(Shape(**plan.shape), plan.seed)
        self.keys = [key for key, _ in self.model.named_parameters()]
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=plan.peak_rate, betas=(0.9, 0.95))
        self.record = Record()

    def step(self, world: World, tokens: torch.Tensor, rate: float) -> None:
        """One step of data-parallel training on this rank's ``tokens``."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        begin = time.perf_counter()
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.model.loss(tokens)
        torch.autograd.backward(loss)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        exchange = time.perf_counter()
        work = gcomm.all_reduce_coalesced(
            gradients, "avg", world.comm, codec=self.codec, keys=self.keys, async_op=True
        )
        assert work is not None
        work.wait()
        exchanged = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.record.losses.append(float(loss.detach()))
        self.record.exchange_s.append(exchanged - exchange)
        self.record.step_s.append(time.perf_counter() - begin)
        self.record.wire_bytes.append(int(work.stats["wire_bytes"]))
        self.record.raw_bytes.append(int(work.stats["raw_bytes"]))

    def evaluate(self, world: World, batches: list[torch.Tensor], total: int) -> float:
        """Mean loss over all ranks' ``batches``, ``total`` sequences in all."""
        with torch.no_grad():
            mine = sum(float(self.model.loss(batch)) * len(batch) for batch in batches)
        return float(world.gather(np.array([mine])).sum()) / total

    def digest(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Checksum of all parameters' bits (32 bytes)."""
        checksum = hashlib.sha256()
        for parameter in self.model.parameters():
            checksum.update(parameter.detach().numpy().tobytes())
        return np.frombuffer(checksum.digest(), np.uint8)


@dataclass
class Record:
    """What this rank saw of one learner, step by step."""

    losses: list[float] = field(default_factory=list)
    exchange_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    wire_bytes: list[int] = field(default_factory=list)
    raw_bytes: list[int] = field(default_factory=list)
    evaluation: list[tuple[int, float]] = field(default_factory=list)


def train(world: World, config: Message, emit: Emit) -> None:
    """Train all models; emits ``{"step": n, "losses": {...}}`` and at the end ``{"result": [row, ...]}``."""
    plan = Plan(**config)
    torch.set_num_threads(1)
    corpus = load_corpus()
    _require_same_corpus(world, corpus)
    length = plan.shape["context"] + 1
    batches = evaluation_batches(
        corpus, world.rank, world.size, total=plan.evaluation_sequences, length=length, sequences=plan.sequences
    )
    learners = [Learner(name, plan) for name in (EXACT, *plan.codecs)]
    evaluate_at = {round(plan.steps * (i + 1) / plan.evaluations) for i in range(plan.evaluations)}
    for step, rate in enumerate(_rates(plan), start=1):
        tokens = training_batch(corpus, plan.seed, step, world.rank, sequences=plan.sequences, length=length)
        for learner in learners:
            learner.step(world, tokens, rate)
            if step in evaluate_at:
                value = learner.evaluate(world, batches, plan.evaluation_sequences)
                learner.record.evaluation.append((step, value))
        emit({"step": step, "losses": {learner.name: learner.record.losses[-1] for learner in learners}})
    emit({"result": [_row(world, learner, learners[0]) for learner in learners]})


def _rates(plan: Plan) -> Iterator[float]:
    """Learning rates: a short linear rise, then a cosine down to a tenth."""
    rise = max(1, plan.steps // 12)
    for step in range(plan.steps):
        down = 0.55 + 0.45 * math.cos(math.pi * step / plan.steps)
        yield plan.peak_rate * min(1.0, (step + 1) / rise) * down


def _require_same_corpus(world: World, corpus: Corpus) -> None:
    digests = world.gather(np.frombuffer(corpus.digest.encode(), np.uint8))
    if not (digests == digests[0]).all():
        raise RuntimeError("the ranks read different text: their Python standard libraries differ")


def _row(world: World, learner: Learner, exact: Learner) -> Message:
    record = learner.record
    losses = world.gather(np.array(record.losses)).mean(axis=0)
    # A rank that comes early waits for the others; the last to come sees the exchange alone.
    exchange = world.gather(np.array(record.exchange_s)).min(axis=0)
    step = world.gather(np.array(record.step_s)).max(axis=0)
    sent = world.gather(np.array([record.wire_bytes, record.raw_bytes])).max(axis=0)
    wire, raw = (float(np.median(values)) for values in sent)
    digests = world.gather(learner.digest())
    final, reference = record.evaluation[-1][1], exact.record.evaluation[-1][1]
    return {
        "codec": learner.name,
        "parameters": sum(parameter.numel() for parameter in learner.model.parameters()),
        "world_size": world.size,
        "steps": len(record.losses),
        "train_loss": float(losses[-20:].mean()),
        "eval_loss": final,
        "gap_percent": 100.0 * (final - reference) / reference,
        "wire_bytes_per_step": int(wire),
        "raw_bytes_per_step": int(raw),
        "step_ms": float(np.median(step)) * 1e3,
        "exchange_ms": float(np.median(exchange)) * 1e3,
        "ranks_identical": bool((digests == digests[0]).all()),
        "train_curve": [float(value) for value in losses],
        "eval_curve": record.evaluation,
    }
