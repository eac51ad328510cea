"""The arguments of one call, checked before anything is sent."""

from __future__ import annotations

import datetime
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import _native
from ._arguments import parse_key, parse_spec, parse_timeout, plain_text
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
from .errors import ClosedError, CodecError
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
        self._of_group = False  # the verbs' own communicator of a torch group

    def abort(self, why: str = "abort() was called") -> None:
        """Fails all that is pending, here and on every peer, at once. The communicator is closed then."""
        if not isinstance(why, str):
            Where("abort", "why", self._rank).mistyped(f"expected a str, got {type(why).__name__}")
        self._native.abort(plain_text(why))

    def _with_way_out(self, error: ClosedError) -> ClosedError:
        """A torch group keeps its communicator, also one that is closed: say how to go on."""
        if not self._of_group or not self._native.here:
            return error
        return ClosedError(
            f"{error}; it stays the communicator of its torch group: go on with another group, or with "
            "group=gcomm.Communicator.from_torch(group)",
            error.rank,
        )

    def _resident_codec(self, spec: str, where: Where) -> _native.Codec:
        """The codec of this text whose state is the communicator's."""
        found = self._codecs.get(spec)
        if found is None:
            with self._lock:
                found = self._codecs[spec] = self._native_codec(spec, where)
        return found

    def _native_codec(self, spec: str, where: Where) -> _native.Codec:
        try:
            return self._native.codec(parse_spec(spec, where))
        except CodecError as error:
            raise CodecError(f"{where}: {error}", where.rank) from None
        except ClosedError as error:
            raise self._with_way_out(error) from None


class Call:
    """The arguments of one call, checked one after the other, and what must happen once it has completed."""

    __slots__ = ("async_op", "codec", "comm", "controlled", "finishers", "keep", "key", "seconds", "verb")

    def __init__(self, comm: Host, verb: str, codec: Any, key: Any, *, async_op: bool, timeout: Any) -> None:
        self.comm = comm
        self.verb = verb
        self.async_op = async_op
        self.finishers: list[Callable[[], None]] = []
        self.controlled = False
        # 0: the communicator's default.
        self.seconds = 0.0 if timeout is None else parse_timeout(timeout, self.where("timeout")) or 0.0
        self.codec: _native.Codec | None = None
        if isinstance(codec, str):
            self.codec = comm._codecs.get(codec) or comm._resident_codec(codec, self.where("codec"))
        elif isinstance(codec, Codec):
            self.codec = codec._native
        elif codec is not None:
            self.where("codec").mistyped(f"expected a str, a gcomm.Codec or None, got {type(codec).__name__}")
        self.key = None if key is None else parse_key(key, self.where("key"))
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
        return self.usable(self.writable(obj, name, otherwise), name)

    def writable(self, obj: Any, name: str, otherwise: str = "") -> Array:
        """An array whose elements can be written, wherever they lie."""
        where = self.where(name)
        array = read(obj, where)
        require_writable(array, where, otherwise)
        return array

    def usable(self, array: Array, name: str) -> Array:
        """Memory with an array's values, which gets the result: its own, or a copy if it is not contiguous."""
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
        if array.dtype not in FLOATS:
            require_float(array, self.where(name), what)

    def require_codec_dtype(self, array: Array, name: str) -> None:
        """Any element type moves as it is; codecs take three."""
        if self.codec is not None:
            self.require_float(array, name, "codecs encode")

    def require_like(self, array: Array, name: str, other: Array, other_name: str) -> None:
        if array.dtype is not other.dtype:
            self.where(name).mistyped(f"expected {other.dtype.name} as in {other_name}, got {array.dtype.name}")

    def start(self, function: Callable[..., _native.Work], *arguments: Any, result: Any) -> Work | None:
        """Queues the call: the work, or None once it has completed.

        ``function(comm, *arguments, seconds, keep)`` is the extension's.
        """
        try:
            native = function(self.comm._native, *arguments, self.seconds, self.keep)
        except ClosedError as error:
            raise self.comm._with_way_out(error) from None
        if not self.async_op and not self.finishers:
            native.wait(None)
            return None
        torch = sys.modules.get("torch")
        for_torch = torch is not None and any(isinstance(each, torch.Tensor) for each in self.keep)
        work = Work(
            native,
            self.comm,
            self.verb,
            result,
            finishers=self.finishers,
            for_torch=for_torch,
            controlled=self.controlled,
        )
        if self.async_op:
            return work
        work.wait()
        return None

    def _copied_back(self, array: Array, values: Array) -> Array:
        self.comm._copied_bytes += array.nbytes
        self.keep.append(values.owner)
        self.finishers.append(copy_back(array, values))
        return values
