"""MAPL: learned compression of activations between pipeline stages.

:class:`RVQ` is its vector quantiser, as an object of its own. docs/mapl.md explains the method.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._arguments import parse_int
from ._arrays import (
    Array,
    Dtype,
    Where,
    contiguous_copy,
    contiguous_empty,
    copy_back,
    read,
    require_float,
    require_writable,
)

__all__ = ["RVQ"]


class RVQ:
    """A residual vector quantiser of rows that learns its codewords from what it is shown.

    A row of ``dim`` values is divided by its root mean square (sent as bf16) and cut in sub-vectors, the last
    filled up with zeros. Each becomes the sum of ``stages`` codewords, the codeword of each stage being the
    nearest to what the stages before left. The stages' lists are the same for all sub-vectors.

    Parameters
    ----------
    dim : int
        Values a row, 1 or more.
    subvector : int
        Values a sub-vector, 1 to 256.
    stages : int
        1 to 16.
    codewords : int
        Of a stage, 2 to 4096. A code takes ceil(log2(codewords)) bits.
    seed : int
        Of the first codewords and of those drawn later; the same seed and rows give the same bits, on every
        machine.
    isa : str, optional
        "scalar", "avx2" or "avx512"; the bits are the same.

    Raises
    ------
    gcomm.errors.InvalidArgumentError
        A number is out of its range.

    Methods may be called from several threads; they take turns.
    """

    __slots__ = ("_dim", "_lock", "_native", "_shape")

    def __init__(
        self,
        dim: int,
        subvector: int = 8,
        stages: int = 4,
        codewords: int = 256,
        seed: int = 0,
        *,
        isa: str | None = None,
    ) -> None:
        def number(name: str, value: int, least: int, most: int) -> int:
            return parse_int(value, Where("RVQ", name, None), least, most)

        if isa is not None and not isinstance(isa, str):
            Where("RVQ", "isa", None).mistyped(f"expected a str or None, got {type(isa).__name__}")
        self._dim = number("dim", dim, 1, 2**32)
        self._shape = (
            number("stages", stages, 1, 16),
            number("codewords", codewords, 2, 4096),
            number("subvector", subvector, 1, 256),
        )
        self._lock = threading.Lock()  # the core takes one call at a time, and Python's own lock is released
        self._native = _native.Rvq(
            self._dim,
            self._shape[2],
            self._shape[0],
            self._shape[1],
            number("seed", seed, 0, 2**64 - 1),
            isa,
        )

    @property
    def dim(self) -> int:
        """Values a row."""
        return self._dim

    @property
    def codebooks(self) -> NDArray[np.float32]:
        """A copy of the codewords, float32 (stages, codewords, subvector); in units of a row's scale.

        Setting them goes on from there as if they had been learned.
        """
        values = np.empty(self._shape, np.float32)
        with self._lock:
            self._native.read(values.ctypes.data)
        return values

    @codebooks.setter
    def codebooks(self, values: Any) -> None:
        where = Where("RVQ", "codebooks", None)
        array = read(values, where)
        if array.dtype is not Dtype.float32 or tuple(array.shape) != self._shape:
            where.invalid(f"expected float32 {self._shape}, got {array.dtype.name} {tuple(array.shape)}")
        array = array if array.contiguous else contiguous_copy(array, where)
        with self._lock:
            self._native.load(array.pointer)

    def encoded_bytes(self, tokens: int) -> int:
        """Bytes that ``tokens`` rows take: 2 each, and the bits of all their codes in whole bytes."""
        return self._native.encoded_bytes(parse_int(tokens, Where("encoded_bytes", "tokens", None), 0, 2**32))

    def update(self, z: Any) -> None:
        """Moves the codewords towards these rows.

        The first call takes codewords from the rows themselves and refines them there; later ones average
        (0.97 old, 0.03 new), and replace codewords that hardly any sub-vector is nearest to.

        Parameters
        ----------
        z : array (..., dim) of float32, bfloat16 or float16
            No rows: nothing happens.

        Raises
        ------
        gcomm.errors.NonFiniteError
            A row holds a NaN or an Inf. Nothing has been learned.
        """
        rows, tokens = self._rows(z, Where("update", "z", None))
        with self._lock:
            self._native.update(rows.pointer, rows.dtype, tokens)

    def encode(self, z: Any) -> NDArray[np.uint8]:
        """The rows' scales, then their codes, as bytes (docs/wire-format.md, section 7).

        Parameters
        ----------
        z : array (..., dim) of float32, bfloat16 or float16

        Raises
        ------
        gcomm.errors.NonFiniteError
            A row holds a NaN or an Inf.
        """
        rows, tokens = self._rows(z, Where("encode", "z", None))
        codes = np.empty(self._native.encoded_bytes(tokens), np.uint8)
        with self._lock:
            self._native.encode(rows.pointer, rows.dtype, tokens, codes.ctypes.data, codes.nbytes)
        return codes

    def decode(self, codes: Any, out: Any) -> Any:
        """Decodes into ``out`` and returns ``out``.

        Parameters
        ----------
        codes : array of uint8
            What ``encode`` returned, under the same codewords, for as many rows as ``out`` has.
        out : writable array (..., dim) of float32, bfloat16 or float16
            A value beyond its element type saturates.

        Raises
        ------
        gcomm.errors.CodecError
            No encoder wrote these bytes for so many rows. ``out`` is as before.
        """
        where = Where("decode", "codes", None)
        source = read(codes, where)
        if not source.contiguous or source.dtype is not Dtype.uint8:
            where.mistyped(f"expected contiguous uint8, got {source.dtype.name} of shape {tuple(source.shape)}")
        where = Where("decode", "out", None)
        target = read(out, where)
        tokens = self._tokens(target, where)
        require_writable(target, where)
        written = target if target.contiguous else contiguous_empty(target, where)
        with self._lock:
            self._native.decode(source.pointer, source.nbytes, written.pointer, written.dtype, tokens)
        if written is not target:
            copy_back(target, written)()
        return out

    def _rows(self, z: Any, where: Where) -> tuple[Array, int]:
        array = read(z, where)
        tokens = self._tokens(array, where)
        return (array if array.contiguous else contiguous_copy(array, where)), tokens

    def _tokens(self, array: Array, where: Where) -> int:
        require_float(array, where, "rows are of")
        if len(array.shape) == 0 or array.shape[-1] != self._dim:
            where.invalid(f"expected rows of {self._dim} values, got shape {tuple(array.shape)}")
        return array.count // self._dim
