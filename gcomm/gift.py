"""GIFT by hand: the basis that ``codec="gift+..."`` keeps for each key, as an object.

docs/gift.md derives the transform. A program that only communicates needs none of this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._arrays import Array, Dtype, Where, contiguous_copy, read, require_float

__all__ = ["Basis"]


class Basis:
    """The leading singular directions of a matrix, followed from one reference to the next.

    Parameters
    ----------
    shape : (int, int)
        Rows m and columns n.
    rank : int
        Directions to follow, at least 1 and less than min(m, n).
    isa : str, optional
        "scalar", "avx2" or "avx512"; the bits are the same.

    Raises
    ------
    ValueError
        The rank does not fit the shape.
    """

    __slots__ = ("_native", "_shape")

    def __init__(self, shape: Sequence[int], rank: int, *, isa: str | None = None) -> None:
        where = Where("Basis", "shape", None)
        sizes = tuple(shape)
        if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
            where.invalid(f"expected two positive ints, got {sizes}")
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            Where("Basis", "rank", None).invalid(f"expected an int of 1 or more, got {rank!r}")
        self._shape = (sizes[0], sizes[1])
        self._native = _native.Basis(sizes[0], sizes[1], rank, isa)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._shape

    @property
    def rank(self) -> int:
        """Directions found: 0 before the first update, fewer than asked for where the reference has fewer."""
        return self._native.rank

    @property
    def digest(self) -> int:
        """A fingerprint of everything in the basis, what ranks compare (64 bits)."""
        return self._native.digest

    @property
    def spectrum(self) -> NDArray[np.float64]:
        """The leading singular values of the last reference, float64 (rank,), descending."""
        return np.array(self._native.spectrum, dtype=np.float64)

    @property
    def u(self) -> NDArray[np.float32]:
        """Left directions, float32 (m, rank), orthonormal columns."""
        return self._directions()[0]

    @property
    def v(self) -> NDArray[np.float32]:
        """Right directions, float32 (n, rank), orthonormal columns."""
        return self._directions()[1]

    def update(self, reference: Any, rounds: int = 2) -> None:
        """Follows the leading directions of ``reference`` from where they were.

        Parameters
        ----------
        reference : array (m, n) of float32, bfloat16 or float16
        rounds : int
            Of subspace iteration; from nothing at least two are made.

        Raises
        ------
        gcomm.errors.NonFiniteError
            The reference holds a NaN or an Inf, or nothing but zeros. The basis is as before.
        """
        where = Where("update", "reference", None)
        array = self._matrix(reference, where)
        self._native.update(array.pointer, array.dtype, rounds)

    def apply(self, x: Any) -> NDArray[np.float32]:
        """T(x), float32 (m, n): (I + U (D - I) U^T) x (I + V (D - I) V^T) with D of docs/gift.md."""
        return self._transformed(x, "apply")

    def inverse(self, y: Any) -> NDArray[np.float32]:
        """The matrix whose ``apply`` is ``y``, float32 (m, n), up to fp32's rounding."""
        return self._transformed(y, "inverse")

    def _directions(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        u = np.empty((self._shape[0], self.rank), np.float32)
        v = np.empty((self._shape[1], self.rank), np.float32)
        self._native.read(u.ctypes.data, v.ctypes.data)
        return u, v

    def _transformed(self, x: Any, verb: str) -> NDArray[np.float32]:
        array = self._matrix(x, Where(verb, "x" if verb == "apply" else "y", None))
        memory = bytearray(ctypes.string_at(array.pointer, array.nbytes))
        out: NDArray[np.float32]
        if array.dtype is Dtype.float32:
            out = np.frombuffer(memory, np.float32)
        elif array.dtype is Dtype.float16:
            out = np.frombuffer(memory, np.float16).astype(np.float32)
        else:
            out = (np.frombuffer(memory, np.uint16).astype(np.uint32) << 16).view(np.float32)
        out = out.reshape(self._shape)
        getattr(self._native, verb)(out.ctypes.data)
        return out

    def _matrix(self, x: Any, where: Where) -> Array:
        array = read(x, where)
        require_float(array, where, "bases are of")
        if tuple(array.shape) != self._shape:
            where.invalid(f"expected a matrix of {self._shape}, got {tuple(array.shape)}")
        return array if array.contiguous else contiguous_copy(array, where)
