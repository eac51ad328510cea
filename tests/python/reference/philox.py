"""Philox4x32-10 over arrays of counters, and the 16-bit numbers that stochastic rounding takes from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox4x32(counters: NDArray[np.uint64], seed: int) -> U32:
    """Ten rounds for each counter.

    Parameters
    ----------
    counters : uint64 array, shape (n, 4)
        Four 32-bit words each.
    seed : int
        The key: its low and high 32 bits.

    Returns
    -------
    uint32 array, shape (n, 4)
    """
    x = np.array(counters, np.uint64)
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint64)
    bump = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
    for _ in range(10):
        low = x[:, 0] * np.uint64(0xD2511F53)
        high = x[:, 2] * np.uint64(0xCD9E8D57)
        left, right = (high >> _SHIFT) ^ x[:, 1] ^ key[0], (low >> _SHIFT) ^ x[:, 3] ^ key[1]
        x = np.stack([left, high & _MASK, right, low & _MASK], axis=1)
        key = (key + bump) & _MASK
    return x.astype(np.uint32)


def fnv1a32(text: bytes) -> int:
    """FNV-1a, 32 bit."""
    value = 0x811C9DC5
    for byte in text:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def stream_id(key: str, source: int) -> int:
    """Which stream a range is rounded with: source is a rank, or -1 for an owner's sum."""
    return (fnv1a32(key.encode()) + 0x9E3779B9 * (source + 1)) & 0xFFFFFFFF


def uniform16(first: int, count: int, seed: int, call: int, stream: int) -> NDArray[np.int64]:
    """The 16-bit numbers of elements first .. first + count, as integers (u times 2^16)."""
    element = np.arange(first, first + count, dtype=np.uint64)
    group, where = np.unique(element // np.uint64(8), return_inverse=True)
    counters = np.empty((len(group), 4), np.uint64)
    counters[:, 0] = group & _MASK
    counters[:, 1] = group >> _SHIFT
    counters[:, 2] = call
    counters[:, 3] = stream
    words = philox4x32(counters, seed)
    lane = (element % np.uint64(8)).astype(np.int64)
    chosen = words[where, lane // 2]
    return ((chosen >> (16 * (lane % 2)).astype(np.uint32)) & np.uint32(0xFFFF)).astype(np.int64)


def tile_signs(seed: int) -> NDArray[np.bool_]:
    """Hadamard's signs: True where the element at this position of a tile is negated."""
    position = np.arange(4096, dtype=np.uint64)
    counters = np.zeros((4096, 4), np.uint64)
    counters[:, 0] = position // np.uint64(128)
    counters[:, 3] = 0x48414441
    words = philox4x32(counters, seed)
    chosen = words[np.arange(4096), (position // np.uint64(32) % np.uint64(4)).astype(np.int64)]
    return ((chosen >> (position % np.uint64(32)).astype(np.uint32)) & np.uint32(1)).astype(bool)
