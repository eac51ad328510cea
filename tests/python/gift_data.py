"""Gradients for the tests of gift, and all-reduces of them over threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ranks import run_local

import gcomm

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def gradients(shape: tuple[int, int], ranks: int, step: int, *, turn: float = 0.0) -> list[F32]:
    """One a rank: twelve directions that all share, each 0.7 of the one before, and noise.

    ``turn`` says how fast the directions wander from step to step.
    """
    shared, wander = np.random.default_rng(7), np.random.default_rng(8)
    u, v = (shared.standard_normal((size, 12)) for size in shape)
    du, dv = (wander.standard_normal((size, 12)) for size in shape)
    angle = turn * step
    u, v = np.cos(angle) * u + np.sin(angle) * du, np.cos(angle) * v + np.sin(angle) * dv
    out = []
    for rank in range(ranks):
        own = np.random.default_rng(1000 * step + rank)
        sizes = 0.7 ** np.arange(12) * (1 + 0.2 * own.standard_normal(12))
        out.append((u * sizes @ v.T + 0.05 * own.standard_normal(shape)).astype(np.float32))
    return out


def _steps(
    comm: gcomm.Communicator, codecs: Sequence[Any], steps: Sequence[Sequence[F32]], op: str
) -> list[F32]:
    results = []
    for step in steps:
        x = step[comm.rank].copy()
        comm.all_reduce(x, op, codec=codecs[comm.rank], key="w")
        results.append(x)
    return results


def reduced(codecs: Sequence[gcomm.Codec | str], steps: Sequence[Sequence[F32]], op: str = "sum") -> list[F32]:
    """The results of one all_reduce after the other, each the same on all ranks (``codecs``: one a rank)."""
    by_rank = run_local(_steps, len(codecs), codecs, steps, op)
    for results in by_rank[1:]:
        for ours, theirs in zip(by_rank[0], results, strict=True):
            assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    first: list[F32] = by_rank[0]
    return first


def codecs_of(text: str, ranks: int) -> list[gcomm.Codec]:
    """A codec object for each rank."""
    return [gcomm.codec(text) for _ in range(ranks)]
