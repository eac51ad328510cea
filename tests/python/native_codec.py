"""The library's codecs position by position, in the shape of the reference's, for tests that compare them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcomm import _native

DTYPES = {"float32": 0, "uint16": 1, "float16": 2}  # gcomm.h's numbers; uint16 holds bf16 bits
ISAS = [name for name, available, *_ in _native.isa_rows() if available]


class NativeCodec:
    """A codec without state: each call says where in which tensor it stands."""

    def __init__(self, text: str, isa: str | None = None) -> None:
        self.text = text
        self.handle = _native.Codec(text, isa)

    def wire_bytes(self, count: int) -> int:
        """Encoded length (every format here has a fixed one)."""
        return int(self.handle.max_encoded_bytes(count))

    def encode(
        self,
        x: NDArray[Any],
        *,
        key: str = "",
        call: int = 0,
        source: int = 0,
        element: int = 0,
        residual: None = None,
    ) -> bytes:
        """As ReferenceCodec.encode, without residuals."""
        assert residual is None
        x = np.ascontiguousarray(x)
        position = (call, element, source)
        return self.handle.encode(x.ctypes.data, DTYPES[x.dtype.name], len(x), key, position)

    def decode(self, data: bytes, count: int, dtype: str = "float32") -> NDArray[Any]:
        """To "float32", "float16" or "uint16" (bf16 bits); the bytes lie at an odd address, nothing else is
        written.
        """
        source = np.frombuffer(b"\x55" + data, np.uint8)[1:]
        around = np.full(count + 32, 77, dtype)
        out = around[16 : 16 + count]
        self.handle.decode(source.ctypes.data, len(data), out.ctypes.data, DTYPES[dtype], count)
        assert (around[:16] == 77).all(), "decode wrote before its output"
        assert (around[16 + count :] == 77).all(), "decode wrote past its output"
        return out

    def decode_accumulate(self, data: bytes, accumulator: NDArray[np.float32]) -> NDArray[np.float32]:
        """Accumulator plus what was decoded, as a new array."""
        out = accumulator.copy()
        source = np.frombuffer(data, np.uint8)
        self.handle.decode_accumulate(source.ctypes.data, len(data), out.ctypes.data, len(out))
        return out


def difference(ours: bytes | NDArray[Any], theirs: bytes | NDArray[Any]) -> str:
    """Where the bits first differ, or an empty text."""
    a = np.frombuffer(ours, np.uint8) if isinstance(ours, bytes) else ours.reshape(-1)
    b = np.frombuffer(theirs, np.uint8) if isinstance(theirs, bytes) else theirs.reshape(-1)
    if a.dtype != b.dtype or len(a) != len(b):
        return f"{len(a)} x {a.dtype} against {len(b)} x {b.dtype}"
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32}[a.dtype.itemsize]
    unequal = np.flatnonzero(a.view(unsigned) != b.view(unsigned))
    if len(unequal) == 0:
        return ""
    i = int(unequal[0])
    return f"{len(unequal)} of {len(a)} differ, first [{i}]: {a[i]!r} against {b[i]!r}"
