"""The arguments of one call, checked before anything is sent."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from typing import Any

from . import _native
from ._arguments import parse_timeout
from ._arrays import (
    FLOATS,
    Array,
    Where,
    contiguous_copy,
    contiguous_empty,
    copy_back,
    read,
    require_float,
    require_writable,
)
from ._codec import Codec
from .errors import CodecError
from .work import Work

Timeout = float | datetime.timedelta | None
CodecLike = str | Codec | None


class Host:
    """What a call needs of its communicator."""

    def __init__(self, native: _native.Comm) -> None:
        self._native = native
        self._rank = native.rank
        self._size = native.size
        self._codecs: dict[str, _native.Codec] = {}
        self._lock = threading.Lock()
        self._copied_bytes = 0

    def abort(self, why: str = "abort() was called") -> None:
        """Fails all that is pending, here and on every peer, at once. The communicator is closed then."""
        self._native.abort(why)

    def _resident_codec(self, spec: str) -> _native.Codec:
        """The codec of this text whose state is the communicator's."""
        found = self._codecs.get(spec)
        if found is None:
            with self._lock:
                found = self._codecs[spec] = self._native.codec(spec)
        return found


class Call:
    """The arguments of one call, checked one after the other, and what must happen once it has completed."""

    __slots__ = ("async_op", "codec", "comm", "finishers", "keep", "seconds", "verb")

    def __init__(self, comm: Host, verb: str, codec: Any, async_op: bool, timeout: Any) -> None:
        self.comm = comm
        self.verb = verb
        self.async_op = async_op
        self.finishers: list[Callable[[], None]] = []
        # 0: the communicator's default.
        self.seconds = parse_timeout(timeout, self.where("timeout")) or 0.0
        self.codec: _native.Codec | None = None
        if isinstance(codec, str):
            try:
                self.codec = comm._resident_codec(codec)
            except CodecError as error:
                raise CodecError(f"{self.where('codec')}: {error}", comm._rank) from None
        elif isinstance(codec, Codec):
            self.codec = codec._native
        elif codec is not None:
            self.where("codec").mistyped(f"expected a str, a gcomm.Codec or None, got {type(codec).__name__}")
        self.keep: list[Any] = [comm._native, self.codec]

    def where(self, name: str) -> Where:
        return Where(self.verb, name, self.comm._rank)

    def input(self, obj: Any, name: str, apart_from: Array | None = None) -> Array:
        """Memory that is read. A copy if it is not contiguous, or if it shares memory with the output."""
        array = read(obj, self.where(name))
        if not array.contiguous or (apart_from is not None and array.overlaps(apart_from)):
            array = contiguous_copy(array, self.where(name))
            self.comm._copied_bytes += array.nbytes
        self.keep.append(array.owner)
        return array

    def output(self, obj: Any, name: str, apart_from: Array | None = None) -> Array:
        """Memory that is written. If it is not contiguous, or shares memory with the input, it gets a copy."""
        array = read(obj, self.where(name))
        require_writable(array, self.where(name))
        self.keep.append(array.owner)
        if not array.contiguous or (apart_from is not None and array.overlaps(apart_from)):
            return self._copied_back(array, contiguous_empty(array, self.where(name)))
        return array

    def in_place(self, obj: Any, name: str, otherwise: str = "") -> Array:
        """Memory that is read and then written."""
        array = read(obj, self.where(name))
        require_writable(array, self.where(name), otherwise)
        self.keep.append(array.owner)
        if not array.contiguous:
            return self._copied_back(array, contiguous_copy(array, self.where(name)))
        return array

    def pair(self, tensor: Any, out: Any) -> tuple[Array, Array]:
        """The input and the output of a call that works in place unless out= is given."""
        if out is None or out is tensor:
            array = self.in_place(tensor, "tensor", ", or out=")
            return array, array
        source = read(tensor, self.where("tensor"))
        target = read(out, self.where("out"))
        require_writable(target, self.where("out"))
        if target.dtype is not source.dtype or tuple(target.shape) != tuple(source.shape):
            self.where("out").invalid(
                f"expected {source.dtype.name} of shape {tuple(source.shape)} as in tensor, got "
                f"{target.dtype.name} of shape {tuple(target.shape)}"
            )
        same = source.pointer == target.pointer and source.contiguous and target.contiguous
        if not same and source.overlaps(target):
            self.where("out").invalid(
                "it shares memory with a part of tensor; pass tensor itself or other memory"
            )
        return self.input(tensor, "tensor"), self.output(out, "out")

    def require_float(self, array: Array, name: str, what: str) -> None:
        require_float(array, self.where(name), what)

    def require_codec_dtype(self, array: Array, name: str) -> None:
        """Any element type moves as it is; codecs take three."""
        if self.codec is not None and array.dtype not in FLOATS:
            require_float(array, self.where(name), "codecs encode")

    def require_like(self, array: Array, name: str, other: Array, other_name: str) -> None:
        if array.dtype is not other.dtype:
            self.where(name).mistyped(f"expected {other.dtype.name} as in {other_name}, got {array.dtype.name}")

    def started(self, native: _native.Work, result: Any) -> Work | None:
        """The work, or None once it has completed."""
        work = Work(native, self.comm, self.verb, result, self.finishers)
        if self.async_op:
            return work
        work.wait()
        return None

    def _copied_back(self, array: Array, values: Array) -> Array:
        self.comm._copied_bytes += array.nbytes
        self.keep.append(values.owner)
        self.finishers.append(copy_back(array, values))
        return values
