"""Codes of a block to bytes: docs/wire-format.md, section 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]


def pack_bytes(u: I64) -> U8:
    """One byte each."""
    return u.astype(np.uint8)


def pack_int6(u: I64) -> U8:
    """48 bytes for 64 codes."""
    out = np.zeros((len(u), 48), np.uint8)
    for j in range(32):
        out[:, j] = (u[:, j] & 15) | (u[:, j + 32] & 15) << 4
    for j in range(16):
        out[:, 32 + j] = sum((u[:, j + 16 * k] >> 4) << 2 * k for k in range(4))
    return out


def pack_int4(u: I64) -> U8:
    """32 bytes for 64 codes."""
    return (u[:, :32] | u[:, 32:] << 4).astype(np.uint8)


def pack_pairs(u: I64) -> U8:
    """Neighbours share a byte."""
    return (u[:, 0::2] | u[:, 1::2] << 4).astype(np.uint8)


def pack_int3(u: I64) -> U8:
    """12 bytes for 32 codes."""
    out = np.zeros((len(u), 12), np.uint8)
    out[:, :8] = sum((u[:, 8 * k : 8 * k + 8] & 3) << 2 * k for k in range(4))
    word = sum((u[:, j] >> 2) << j for j in range(32))
    out[:, 8:] = np.asarray(word, "<u4").reshape(-1, 1).view(np.uint8)
    return out


def pack_int2(u: I64) -> U8:
    """8 bytes for 32 codes."""
    return np.asarray(sum(u[:, 8 * k : 8 * k + 8] << 2 * k for k in range(4)), np.uint8)


INT_LAYOUT = {
    "int8": (0, pack_bytes),
    "int6": (32, pack_int6),
    "int4": (8, pack_int4),
    "int3": (4, pack_int3),
    "int2": (0, pack_int2),
}
