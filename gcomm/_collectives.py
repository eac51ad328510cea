"""The calls that the ranks of a communicator make together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from . import _native
from ._arguments import parse_int, parse_key, parse_op, parse_rank
from ._arrays import Array, Dtype, Where
from ._call import Call, CodecLike, Host, Timeout
from ._codec import Codec
from ._control import Control
from .errors import ClosedError
from .work import Work


class Collectives(Host):
    """The verbs as methods; :mod:`gcomm.verbs` documents them."""

    def all_reduce(
        self,
        tensor: Any,
        op: Any = "sum",
        *,
        codec: CodecLike = "fp8_e4m3",
        key: str | None = None,
        out: Any = None,
        async_op: bool = False,
        timeout: Timeout = None,
        controller: Any = None,
    ) -> Work | None:
        """Sum or average over all ranks; see :func:`gcomm.all_reduce`."""
        control = self._control("all_reduce", controller, [key])
        if control is not None:
            codec = control.codec(codec)
        call = Call(self, "all_reduce", codec, key, async_op=async_op, timeout=timeout)
        number = parse_op(op, call.where("op"))
        source, target = call.pair(tensor, out)
        call.require_float(source, "tensor", "sums and averages are of")
        if control is not None:
            # Before a result is copied back to an array that is not contiguous.
            call.finishers.insert(0, control.finisher([target]))
            call.controlled = True
        row = (source.pointer, target.pointer, source.count, call.key, *source.matrix())
        result = tensor if out is None else out
        return call.start(_native.all_reduce, [row], source.dtype, number, call.codec, result=result)

    def all_reduce_coalesced(
        self,
        tensors: Sequence[Any],
        op: Any = "sum",
        *,
        codec: CodecLike = "fp8_e4m3",
        keys: Sequence[str | None] | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
        controller: Any = None,
    ) -> Work | None:
        """Sums or averages of several arrays in one call; see :func:`gcomm.all_reduce_coalesced`."""
        control = self._control("all_reduce_coalesced", controller, keys)
        if control is not None:
            codec = control.codec(codec)
        call = Call(self, "all_reduce_coalesced", codec, None, async_op=async_op, timeout=timeout)
        number = parse_op(op, call.where("op"))
        if isinstance(tensors, (str, bytes)) or not isinstance(tensors, Sequence) or not tensors:
            call.where("tensors").mistyped("expected a list of one or more arrays")
        if keys is not None:
            if isinstance(keys, (str, bytes)) or not isinstance(keys, Sequence):
                call.where("keys").mistyped(f"expected a list of keys, got {type(keys).__name__}")
            if len(keys) != len(tensors):
                call.where("keys").invalid(f"expected {len(tensors)} keys, one a tensor, got {len(keys)}")
        rows: list[tuple[int, int, int, str | None, int, int]] = []
        arrays: list[Array] = []
        outputs: list[Array] = []
        for i, (tensor, key) in enumerate(zip(tensors, keys or itertools.repeat(None), strict=False)):
            name = f"tensors[{i}]"
            array = call.writable(tensor, name)
            call.require_float(array, name, "sums and averages are of")
            if arrays and array.dtype is not arrays[0].dtype:
                call.where(name).mistyped(
                    f"expected {arrays[0].dtype.name} as in tensors[0], got {array.dtype.name}: one "
                    "call, one type"
                )
            for j, other in enumerate(arrays):
                if array.overlaps(other):
                    call.where(name).invalid(f"it shares memory with tensors[{j}]")
            arrays.append(array)
            memory = call.usable(array, name)
            outputs.append(memory)
            known = parse_key(key, call.where(f"keys[{i}]"))
            rows.append((memory.pointer, memory.pointer, memory.count, known, *memory.matrix()))
        if control is not None:
            call.finishers.insert(0, control.finisher(outputs))
            call.controlled = True
        dtype = arrays[0].dtype
        return call.start(_native.all_reduce, rows, dtype, number, call.codec, result=list(tensors))

    def _all_reduce_rows(
        self,
        rows: Sequence[tuple[int, int, int, str | None, int, int]],
        dtype: Dtype,
        op: int,
        *,
        codec: Codec | None,
        keep: Sequence[Any],
        seconds: float,
    ) -> Work:
        """An all_reduce_coalesced whose arguments the caller has checked.

        rows: input, output, count, key, rows and columns of each tensor. ``keep``: what the memory belongs to.
        ``seconds``: 0 for the communicator's default.
        """
        native = None if codec is None else codec._native
        kept = [self._native, native, *keep]
        try:
            work = _native.all_reduce(self._native, rows, dtype, op, native, seconds, kept)
        except ClosedError as error:
            raise self._with_way_out(error) from None
        return Work(work, self, "all_reduce_coalesced", keep, finishers=(), for_torch=True)

    def reduce_scatter_tensor(
        self,
        output: Any,
        input: Any,
        op: Any = "sum",
        *,
        codec: CodecLike = "fp8_e4m3",
        key: str | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
    ) -> Work | None:
        """Sum or average, of which each rank gets its part; see :func:`gcomm.reduce_scatter_tensor`."""
        call = Call(self, "reduce_scatter_tensor", codec, key, async_op=async_op, timeout=timeout)
        number = parse_op(op, call.where("op"))
        source = call.input(input, "input")
        target = call.output(output, "output", apart_from=source)
        call.require_float(source, "input", "sums and averages are of")
        call.require_like(target, "output", source, "input")
        if source.count != target.count * self._size:
            call.where("input").invalid(
                f"expected {self._size} times output's {target.count} elements, got {source.count}"
            )
        return call.start(
            _native.reduce_scatter,
            source.pointer,
            target.pointer,
            target.count,
            source.dtype,
            number,
            call.codec,
            call.key,
            *source.matrix(),
            result=output,
        )

    def all_gather_into_tensor(
        self,
        output_tensor: Any,
        input_tensor: Any,
        *,
        codec: CodecLike = None,
        key: str | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
    ) -> Work | None:
        """Everybody's array for everybody; see :func:`gcomm.all_gather_into_tensor`."""
        call = Call(self, "all_gather_into_tensor", codec, key, async_op=async_op, timeout=timeout)
        target = call.output(output_tensor, "output_tensor")
        source = call.input(input_tensor, "input_tensor", apart_from=target)
        call.require_codec_dtype(source, "input_tensor")
        call.require_like(target, "output_tensor", source, "input_tensor")
        if target.count != source.count * self._size:
            call.where("output_tensor").invalid(
                f"expected {self._size} times input_tensor's {source.count} elements, got {target.count}"
            )
        return call.start(
            _native.all_gather,
            source.pointer,
            target.pointer,
            source.count,
            source.dtype,
            call.codec,
            call.key,
            result=output_tensor,
        )

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        codec: CodecLike = None,
        key: str | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
    ) -> Work | None:
        """A part of every rank's array for every rank; see :func:`gcomm.all_to_all_single`."""
        call = Call(self, "all_to_all_single", codec, key, async_op=async_op, timeout=timeout)
        target = call.output(output, "output")
        source = call.input(input, "input", apart_from=target)
        call.require_codec_dtype(source, "input")
        call.require_like(target, "output", source, "input")
        send_counts = self._split(call.where("input_split_sizes"), "input", source, input_split_sizes)
        recv_counts = self._split(call.where("output_split_sizes"), "output", target, output_split_sizes)
        if send_counts[self._rank] != recv_counts[self._rank]:
            call.where("output_split_sizes").invalid(
                f"this rank sends itself {send_counts[self._rank]} elements but expects "
                f"{recv_counts[self._rank]}"
            )
        return call.start(
            _native.all_to_all,
            source.pointer,
            send_counts,
            target.pointer,
            recv_counts,
            source.dtype,
            call.codec,
            call.key,
            result=output,
        )

    def broadcast(
        self,
        tensor: Any,
        src: int = 0,
        *,
        codec: CodecLike = None,
        key: str | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
    ) -> Work | None:
        """One rank's array for everybody; see :func:`gcomm.broadcast`."""
        call = Call(self, "broadcast", codec, key, async_op=async_op, timeout=timeout)
        root = parse_rank(src, self._size, call.where("src"))
        # Where the root's own values stay as they are, its memory is only read.
        if root == self._rank and codec is None:
            array = call.input(tensor, "tensor")
        else:
            array = call.in_place(tensor, "tensor")
        call.require_codec_dtype(array, "tensor")
        return call.start(
            _native.broadcast,
            array.pointer,
            array.count,
            array.dtype,
            root,
            call.codec,
            call.key,
            result=tensor,
        )

    def send(
        self,
        tensor: Any,
        dst: int,
        *,
        codec: CodecLike = None,
        key: str | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
    ) -> Work | None:
        """An array for one rank, which calls :meth:`recv`; see :func:`gcomm.send`."""
        call = Call(self, "send", codec, key, async_op=async_op, timeout=timeout)
        peer = self._peer(dst, call.where("dst"))
        array = call.input(tensor, "tensor")
        call.require_codec_dtype(array, "tensor")
        return call.start(
            _native.send, array.pointer, array.count, array.dtype, peer, call.codec, call.key, result=None
        )

    def recv(
        self,
        tensor: Any,
        src: int,
        *,
        codec: CodecLike = None,
        key: str | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
    ) -> Work | None:
        """An array from one rank, which calls :meth:`send`; see :func:`gcomm.recv`."""
        call = Call(self, "recv", codec, key, async_op=async_op, timeout=timeout)
        peer = self._peer(src, call.where("src"))
        array = call.output(tensor, "tensor")
        call.require_codec_dtype(array, "tensor")
        return call.start(
            _native.recv, array.pointer, array.count, array.dtype, peer, call.codec, call.key, result=tensor
        )

    def barrier(self, *, async_op: bool = False, timeout: Timeout = None) -> Work | None:
        """Waits until every rank has called it."""
        call = Call(self, "barrier", None, None, async_op=async_op, timeout=timeout)
        return call.start(_native.barrier, result=None)

    def _control(self, verb: str, controller: Any, keys: Any) -> Control | None:
        return None if controller is None else Control(controller, keys, verb, self._rank)

    def _peer(self, rank: Any, where: Where) -> int:
        peer = parse_rank(rank, self._size, where)
        if peer == self._rank:
            where.invalid("a rank can't exchange messages with itself")
        return peer

    def _split(self, where: Where, name: str, array: Array, sizes: Sequence[int] | None) -> list[int]:
        """Elements for (or from) every rank. Sizes are in rows of the first axis, as in torch."""
        rows = array.shape[0] if len(array.shape) > 0 else 1
        row = array.count // rows if rows else 0
        try:
            given = [] if sizes is None else list(sizes)
        except TypeError:
            where.mistyped(f"expected a list of {self._size} sizes, one a rank, got {type(sizes).__name__}")
        if not given:
            if rows % self._size:
                where.invalid(
                    f"needed, as {name}'s first axis of {rows} can't be divided by {self._size} ranks"
                )
            return [rows // self._size * row] * self._size
        if len(given) != self._size:
            where.invalid(f"expected {self._size} sizes, one a rank, got {len(given)}")
        counts = [
            parse_int(size, Where(where.verb, f"{where.name}[{i}]", where.rank), 0, rows)
            for i, size in enumerate(given)
        ]
        if sum(counts) != rows:
            where.invalid(f"expected sizes that add up to {name}'s first axis of {rows}, got {counts}")
        return [size * row for size in counts]
