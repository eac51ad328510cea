"""How a bucket's gradients travel: which of them together, and where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .._arrays import Dtype
from .._codec import Codec

__all__ = ["DTYPES", "Part", "Plan", "make_plan"]

DTYPES = {
    torch.float32: Dtype.float32,
    torch.bfloat16: Dtype.bfloat16,
    torch.float16: Dtype.float16,
}

Row = tuple[int, int, int, "str | None", int, int]


@dataclass
class Part:
    """The gradients of a bucket that go in one call.

    Attributes
    ----------
    codec : Codec or None
        None: exact, in the gradients' own element type.
    names : list of str
        For statistics.
    places : list of (offset, count, key, rows, columns)
        Offset in bytes from the buffer's beginning, count in elements; 0 rows: no matrix.
    sums
        Of statistics.
    """

    codec: Codec | None
    names: list[str] = field(default_factory=list)
    places: list[tuple[int, int, str | None, int, int]] = field(default_factory=list)
    sums: Any = None
    _rows: list[Row] = field(default_factory=list)
    _base: int = -1

    def rows(self, base: int) -> list[Row]:
        """What the native call takes, for a buffer at this address."""
        if base != self._base:
            self._base = base
            self._rows = [(base + at, base + at, n, key, rows, cols) for at, n, key, rows, cols in self.places]
        return self._rows


@dataclass
class Plan:
    """A bucket's parts.

    Attributes
    ----------
    parameters : tuple of int
        ``id`` of each parameter, in the bucket's order: what the plan is for.
    """

    parameters: tuple[int, ...]
    parts: list[Part]


def matrix(parameter: torch.Tensor) -> tuple[int, int]:
    """Rows and columns of a parameter as its gradient lies in the bucket: the outermost axis, and the others.

    A bucket keeps each gradient in its parameter's own memory order.
    """
    if parameter.dim() < 2 or parameter.numel() == 0:
        return 0, 0
    outermost = max(range(parameter.dim()), key=lambda axis: (parameter.stride(axis), -axis))
    rows = parameter.shape[outermost]
    return rows, parameter.numel() // rows


def make_plan(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    base: int,
    names: Sequence[str | None],
    codec_for: Callable[[str | None, torch.Tensor], Codec | None],
) -> Plan:
    """Groups a bucket's gradients by codec, in the order of their first appearance.

    Parameters
    ----------
    parameters, gradients : sequence of torch.Tensor
        Of the bucket, in its order; gradients are views of its buffer.
    base : int
        Address of the buffer.
    names : sequence of str or None
        Of the parameters; None where one has no name.
    codec_for : callable
        The codec of a parameter, by its name and itself.
    """
    parts: dict[int, Part] = {}
    for i, (parameter, gradient, name) in enumerate(zip(parameters, gradients, names, strict=True)):
        count = gradient.numel()
        if count == 0:
            continue
        codec = codec_for(name, parameter)
        part = parts.setdefault(id(codec), Part(codec))
        part.names.append(name or f"(unnamed {i})")
        part.places.append((gradient.data_ptr() - base, count, name, *matrix(parameter)))
    return Plan(tuple(map(id, parameters)), list(parts.values()))
