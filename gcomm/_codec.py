"""Codecs as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import _native
from ._arguments import parse_int, parse_key, parse_spec
from ._arrays import Array, Dtype, Where, contiguous_copy, contiguous_empty, copy_back, read, require_float
from ._arrays import require_writable as _require_writable
from .errors import CodecError

__all__ = ["Codec", "codec"]

_STATE_VERSION = 1


class Codec:
    """A wire format with its transform and options, and its state: call counters and residuals by key.

    Make one with :func:`codec`. A codec object given to a call keeps its state itself (one per model: keys
    can't collide), a codec given as text has its state in the communicator.
    """

    __slots__ = ("__weakref__", "_native")

    def __init__(self, spec: str, *, isa: str | None = None) -> None:
        where = Where("codec", "spec", None)
        if not isinstance(spec, str):
            where.mistyped(f"expected a str, got {type(spec).__name__}")
        if isa is not None and not isinstance(isa, str):
            Where("codec", "isa", None).mistyped(f"expected a str or None, got {type(isa).__name__}")
        self._native = _native.Codec(parse_spec(spec, where), isa)

    @property
    def spec(self) -> str:
        """The codec's text in canonical form."""
        return self._native.spec

    @property
    def isa(self) -> str:
        """The instruction set in use: "scalar", "avx2" or "avx512". All give the same bits."""
        return self._native.isa

    def __repr__(self) -> str:
        return f"gcomm.codec({self.spec!r})"

    def encode(self, x: Any, key: str | None = None) -> bytes:
        """Encodes an array.

        Parameters
        ----------
        x : array of float32, bfloat16 or float16
            Any shape; a copy is made where it is not contiguous.
        key : str, optional
            Whose state to use: the call counter of stochastic rounding and the residual of error feedback.
            Without a key nothing is remembered.

        Returns
        -------
        bytes
            The tiles of docs/wire-format.md, section 1, with no message header.
        """
        return self._encode(x, key, None)

    def encode_into(self, x: Any, out: Any, key: str | None = None) -> int:
        """Encodes an array into memory that is there already, and returns the number of bytes written.

        Parameters
        ----------
        x : array of float32, bfloat16 or float16
        out : writable contiguous array of uint8
            At least ``wire_bytes`` of x's elements.
        key : str, optional
            As in :meth:`encode`.
        """
        where = Where("encode_into", "x", None)
        array = read(x, where)
        require_float(array, where, "codecs encode")
        if not array.contiguous:
            array = contiguous_copy(array, where)
        key = parse_key(key, Where("encode_into", "key", None))
        target = self._encoded(out, "encode_into", "out")
        _require_writable(target, Where("encode_into", "out", None))
        return self._native.encode_into(
            array.pointer, array.dtype, array.count, key, target.pointer, target.nbytes
        )

    def _encode_at(self, x: Any, *, key: str | None, call: int, element: int, source: int) -> bytes:
        """Encodes as a collective does, with no state: ``source`` is a rank, or -1 for an owner's sum."""
        return self._encode(x, key, (call, element, source))

    def _encode(self, x: Any, key: str | None, position: tuple[int, int, int] | None) -> bytes:
        where = Where("encode", "x", None)
        array = read(x, where)
        require_float(array, where, "codecs encode")
        if not array.contiguous:
            array = contiguous_copy(array, where)
        key = parse_key(key, Where("encode", "key", None))
        return self._native.encode(array.pointer, array.dtype, array.count, key, position)

    def decode(self, data: Any, out: Any) -> Any:
        """Decodes ``data`` into ``out`` and returns ``out``.

        Parameters
        ----------
        data : bytes-like
            What ``encode`` returned for as many elements as ``out`` has.
        out : writable array of float32, bfloat16 or float16
            A finite value beyond its element type saturates.

        Raises
        ------
        gcomm.errors.CodecError
            The length is not right for ``out``.
        """
        source = self._encoded(data, "decode")
        where = Where("decode", "out", None)
        target = read(out, where)
        require_float(target, where, "codecs decode to")
        _require_writable(target, where)
        written = target if target.contiguous else contiguous_empty(target, where)
        self._native.decode(source.pointer, source.nbytes, written.pointer, written.dtype, written.count)
        if written is not target:
            copy_back(target, written)()
        return out

    def decode_accumulate(self, data: Any, accumulator: Any) -> Any:
        """Adds what ``data`` decodes to onto a contiguous float32 array, and returns it."""
        source = self._encoded(data, "decode_accumulate")
        where = Where("decode_accumulate", "accumulator", None)
        target = read(accumulator, where)
        if target.dtype is not Dtype.float32 or not target.contiguous:
            where.mistyped(
                f"expected contiguous float32, got {target.dtype.name} of shape {tuple(target.shape)}"
            )
        _require_writable(target, where)
        self._native.decode_accumulate(source.pointer, source.nbytes, target.pointer, target.count)
        return accumulator

    @staticmethod
    def _encoded(data: Any, verb: str, name: str = "data") -> Array:
        where = Where(verb, name, None)
        source = read(data, where)
        if not source.contiguous or source.dtype not in (Dtype.uint8, Dtype.int8):
            where.mistyped(f"expected contiguous bytes, got {source.dtype.name} of shape {tuple(source.shape)}")
        return source

    def wire_bytes(self, count: int) -> int:
        """Bytes that ``count`` elements take; for a format of variable length, at most."""
        count = parse_int(count, Where("wire_bytes", "count", None), 0, 2**63 - 1)
        return self._native.max_encoded_bytes(count)

    def report(self) -> list[dict[str, Any]]:
        """What a gift codec chose for each key so far, and why; empty for other codecs.

        Returns
        -------
        list of dict
            One a key: ``key``, ``geometry``, ``rows``, ``cols``, ``path`` ("direct", "scale", "split" or
            "rows", of weights "direct", "by row and column" or "by element"), ``calls``, ``why``, and for
            spectral gift ``rank``, and once a reference was seen ``predicted_error`` and ``direct_error``
            (relative error of one quantisation), ``bits`` and ``direct_bits`` (an element, side information
            included).
        """
        rows: list[dict[str, Any]] = json.loads(self._native.report())
        return rows

    def state_dict(self) -> dict[str, Any]:
        """The state as plain objects: {"version", "spec", "state": bytes}."""
        return {"version": _STATE_VERSION, "spec": self.spec, "state": self._native.save_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state_dict`` of a codec of the same text returned.

        Raises
        ------
        gcomm.errors.CodecError
            The state is of another codec, of another version, or damaged.
        """
        check_state(state, "codec state", {"version": _STATE_VERSION, "spec": self.spec}, None)
        self._native.load_state(state_bytes(state.get("state"), "codec state: 'state'", None))


def check_state(state: Any, what: str, expected: Mapping[str, Any], rank: int | None) -> None:
    """CodecError unless ``state`` is a mapping with these entries."""
    if not isinstance(state, Mapping):
        raise CodecError(f"{what}: expected a dict as state_dict() gives it, got {type(state).__name__}", rank)
    for name, here in expected.items():
        there = state.get(name)
        if isinstance(there, bool) or there != here:
            raise CodecError(f"{what}: expected {name} {here!r}, got {there!r}", rank)


def state_bytes(saved: Any, what: str, rank: int | None) -> bytes:
    """The bytes of a saved state; CodecError for anything else."""
    if not isinstance(saved, (bytes, bytearray, memoryview)):
        raise CodecError(f"{what}: expected bytes, got {type(saved).__name__}", rank)
    return bytes(saved)


def codec(spec: str | Codec) -> Codec:
    """Makes a codec from its text.

    Parameters
    ----------
    spec : str
        ``"[transform+]format[:option=value]..."``: ``"int4"``, ``"hadamard+int4"``,
        ``"fp8_e4m3:rounding=stochastic:ef=1"``; see docs/codecs.md and :func:`gcomm.codecs`.

    Raises
    ------
    gcomm.errors.CodecError
        The text names something unknown; the message lists what is accepted.
    """
    return spec if isinstance(spec, Codec) else Codec(spec)
