"""What unmodified_ddp.py and fsdp2.py share: a small byte-level model, and text that every machine has."""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

CONTEXT = 64


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = width // 32

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.forward_norm(x))))


class BytesLM(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text() -> torch.Tensor:
    """The Python standard library's own source, as bytes."""
    folder = Path(sysconfig.get_path("stdlib"))
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))[:100])
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def batch(data: torch.Tensor, generator: torch.Generator, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and the bytes that follow each of theirs."""
    starts = torch.randint(len(data) - CONTEXT - 1, (size,), generator=generator)
    rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts]).long()
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, in nats a byte."""
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def command_line(what: str) -> argparse.ArgumentParser:
    """What both examples take."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--backend", default="gcomm", help="of init_process_group: gcomm or gloo")
    parser.add_argument("--steps", type=int, default=200)
    return parser
