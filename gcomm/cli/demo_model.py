"""A small byte-level language model like LLaMA: RMSNorm, rotary positions, SwiGLU, causal attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256  # bytes


@dataclass(frozen=True)
class Shape:
    """Sizes of a model.

    Attributes
    ----------
    width, layers, heads:
        Features of a token, blocks, attention heads of ``width / heads`` features each.
    hidden:
        Features inside the feed-forward part.
    context:
        Tokens of a sequence.
    """

    width: int = 192
    layers: int = 3
    heads: int = 4
    hidden: int = 512
    context: int = 128


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.wq = nn.Linear(shape.width, shape.width, bias=False)
        self.wk = nn.Linear(shape.width, shape.width, bias=False)
        self.wv = nn.Linear(shape.width, shape.width, bias=False)
        self.wo = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """``x`` (batch, context, width); ``cosine`` and ``sine`` (context, width / heads / 2)."""
        batch, length, width = x.shape
        q, k, v = (
            w(x).view(batch, length, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.wo(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w_gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.w_up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.w_down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (batch, context, width)."""
        out: Tensor = self.w_down(functional.silu(self.w_gate(x)) * self.w_up(x))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """``x`` (batch, context, width)."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class ByteModel(nn.Module):
    """Predicts the next byte. The output layer is the embedding, transposed."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        half = shape.width // shape.heads // 2
        angles = torch.outer(torch.arange(shape.context), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                into_residual = name.endswith(("wo.weight", "w_down.weight"))
                deviation = 0.02 / math.sqrt(2 * shape.layers) if into_residual else 0.02
                nn.init.normal_(parameter, std=deviation, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, context, 256) of ``tokens`` (batch, context), integers below 256."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return functional.linear(self.norm(x), self.embedding.weight)

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy, in nats a byte, of ``tokens`` (batch, context + 1)."""
        logits = self(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair of features of ``x`` (..., context, features) by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
