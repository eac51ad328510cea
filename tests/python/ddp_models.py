"""A model with every kind of parameter, and training it, for tests of gcomm.pytorch."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gcomm.pytorch import DDPState, ddp_hook

VOCABULARY = 40


class Mixed(nn.Module):
    """Embedding, norm, biases, a transposed matrix, 0-dim, empty, frozen, unused, bf16 and float64 ones."""

    def __init__(self, width: int = 48, *, odd_types: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.up = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(3 * width)
        self.down = nn.Parameter(0.1 * torch.randn(VOCABULARY, 3 * width).t())
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.unused = nn.Linear(5, 5)
        self.odd_types = odd_types
        if odd_types:
            self.narrow = nn.Parameter((0.1 * torch.randn(width, width)).bfloat16())
            self.wide = nn.Parameter(0.1 * torch.randn(width, 7, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        if self.odd_types:
            h = h + (h.bfloat16() @ self.narrow).float() + (h.double() @ self.wide).mean(-1, True).float()
        out: torch.Tensor = self.norm(torch.relu(self.up(h))) @ self.down * self.scale + self.empty.sum()
        return out


def batch(rank: int, step: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x, y = torch.randint(0, VOCABULARY, (2, size), generator=generator)
    return x, y


def wrapped(model: nn.Module, state: DDPState | None, **options: Any) -> DistributedDataParallel:
    ddp = DistributedDataParallel(model, **{"bucket_cap_mb": 0.02, **options})
    if state is not None:
        ddp.register_comm_hook(state, ddp_hook)
    return ddp


def train(ddp: DistributedDataParallel, rank: int, steps: range, accumulate: int = 1) -> None:
    """SGD with momentum; the first of `accumulate` backwards do not synchronise."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in steps:
        optimizer.zero_grad()
        for part in range(accumulate):
            x, y = batch(rank, accumulate * step + part)
            last = part == accumulate - 1
            with contextlib.nullcontext() if last else ddp.no_sync():
                nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()


def bits(model: nn.Module) -> list[bytes]:
    """The bytes of every parameter."""
    return [p.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for p in model.parameters()]
