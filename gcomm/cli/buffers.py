"""The data of a benchmark: element types, reproducible inputs, and buffers that gcomm and torch both see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gcomm.cli.oracle import F32

# nccl-tests' names -> storage in numpy (bfloat16 as its bits).
DTYPES: dict[str, npt.DTypeLike] = {
    "float": np.float32,
    "half": np.float16,
    "bfloat16": np.uint16,
    "double": np.float64,
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
}
ALIASES = {
    "fp32": "float",
    "float32": "float",
    "fp16": "half",
    "float16": "half",
    "bf16": "bfloat16",
    "float64": "double",
}
REDUCIBLE = ("float", "half", "bfloat16")

SLICE = 1 << 20  # elements that are generated and verified at a time; a multiple of the codec's tile


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return np.dtype(DTYPES[dtype]).itemsize


def generate(dtype: str, source: tuple[int, int, int], count: int) -> npt.NDArray[Any]:
    """Slice ``source`` = (rank, part, slice) of a rank's input: the first ``count`` elements, as they are
    stored.

    Floating-point numbers are standard normal, integers are uniform over their range. Any rank can make any
    other rank's input, which is how results are verified without sending them.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((20_26, *source))))
    storage = np.dtype(DTYPES[dtype])
    if dtype == "bfloat16":
        return to_bfloat16(generator.standard_normal(count, np.float32))
    if storage.kind == "f":
        return generator.standard_normal(count, np.float32).astype(storage)
    return np.frombuffer(generator.bytes(count * storage.itemsize), storage)


def to_bfloat16(values: F32) -> npt.NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even, of finite values."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    upper: npt.NDArray[np.uint16] = (rounded >> np.uint32(16)).astype(np.uint16)
    return upper


def as_float32(stored: npt.NDArray[Any], dtype: str) -> F32:
    """The values of elements of a reducible dtype."""
    if dtype == "bfloat16":
        widened: F32 = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return widened
    return stored.astype(np.float32)


def filled(dtype: str, rank: int, parts: int, count: int) -> npt.NDArray[Any]:
    """The input of ``rank``: ``parts`` parts of ``count`` elements each, one after the other."""
    array = np.empty(parts * count, DTYPES[dtype])
    for part in range(parts):
        for index, start in enumerate(range(0, count, SLICE)):
            length = min(SLICE, count - start)
            begin = part * count + start
            array[begin : begin + length] = generate(dtype, (rank, part, index), length)
    return array


@dataclass(frozen=True)
class Buffer:
    """Elements in memory.

    Attributes
    ----------
    array:
        The elements as they are stored.
    tensor:
        The same memory as gcomm is given it: the array itself, or a torch tensor.
    """

    array: npt.NDArray[Any]
    tensor: Any

    @staticmethod
    def over(array: npt.NDArray[Any], dtype: str, *, for_torch: bool) -> Buffer:
        """No copy; a torch tensor if asked for, and for bfloat16, which numpy lacks."""
        if dtype == "bfloat16":
            import torch

            return Buffer(array, torch.from_numpy(array.view(np.int16)).view(torch.bfloat16))
        if for_torch:
            import torch

            return Buffer(array, torch.from_numpy(array))
        return Buffer(array, array)

    def poison(self) -> None:
        """Fill with bytes that no right result leaves behind."""
        self.array.view(np.uint8).fill(0xFB)
