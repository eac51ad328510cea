"""The verbs, with the names and the argument order of torch.distributed.

Every verb takes

group : ProcessGroup, mpi4py.MPI.Intracomm, Communicator or None
    A torch process group (None: the default one) or an mpi4py communicator, whose :class:`gcomm.Communicator`
    is made collectively at its first use and kept as long as the group; or a Communicator itself.
codec : str, Codec or None
    What travels, as for :func:`gcomm.codec`. None: exact. For sums and averages that is the format of the
    array's own element type; for the rest its bytes, whatever the element type. All ranks give the same.
key : str, optional
    The name of the array, for codecs with state. Error feedback and gift need it. Without it stochastic
    rounding draws the same numbers in every call, so that errors do not average out over calls.
async_op : bool
    True: returns a :class:`gcomm.Work` at once. False: waits, and returns None.
timeout : float or timedelta, optional
    Seconds for the whole call, the making of a group's communicator included; the communicator's default (5
    minutes) if not given.

Arrays are torch tensors, numpy arrays or anything with DLPack, in CPU memory. See :class:`gcomm.Communicator`
for what happens to those that are not contiguous, and :mod:`gcomm.errors` for what a call raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._call import CodecLike, Timeout
from ._torch_group import resolve, to_group_rank
from .work import Work

__all__ = [
    "all_gather_into_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "recv",
    "reduce_scatter_tensor",
    "send",
]


def all_reduce(
    tensor: Any,
    op: Any = "sum",
    group: Any = None,
    *,
    codec: CodecLike = "fp8_e4m3",
    key: str | None = None,
    out: Any = None,
    async_op: bool = False,
    timeout: Timeout = None,
    controller: Any = None,
) -> Work | None:
    """Sums or averages an array over all ranks. All of them get the same bits.

    Each rank's values are quantised once and their sum once more, however many ranks there are; sums are in
    fp32, in rank order. Small arrays travel unencoded.

    Parameters
    ----------
    tensor : array of float32, bfloat16 or float16, any shape
        Read; and written, unless ``out`` is given. The shape's element count is the same on all ranks.
    op : "sum", "avg", ReduceOp.SUM or ReduceOp.AVG
    out : array like tensor, optional
        Gets the result; tensor stays untouched. It may not share memory with a part of tensor.
    controller : gcomm.gnmr.Controller, optional
        Looks at the result's norm, under ``key``, before the result is released: a clip or skip acts on it, and
        under recovery the key travels in a higher wire format (docs/gnmr.md).

    The other parameters are those of :mod:`gcomm.verbs`. If a peer is lost or a deadline passes, an array that
    was to be written may have been written in part; after a MismatchError or NonFiniteError it is untouched.
    """
    comm, timeout = resolve(group, "all_reduce", timeout)
    return comm.all_reduce(
        tensor, op, codec=codec, key=key, out=out, async_op=async_op, timeout=timeout, controller=controller
    )


def all_reduce_coalesced(
    tensors: Sequence[Any],
    op: Any = "sum",
    group: Any = None,
    *,
    codec: CodecLike = "fp8_e4m3",
    keys: Sequence[str | None] | None = None,
    async_op: bool = False,
    timeout: Timeout = None,
    controller: Any = None,
) -> Work | None:
    """Sums or averages several arrays of one element type in one call, in place.

    The result of each is, bit for bit, that of an all_reduce of its own on the direct path: what travels
    together makes no difference.

    Parameters
    ----------
    tensors : sequence of arrays of float32, bfloat16 or float16
        One or more, not sharing memory.
    keys : sequence of str or None, optional
        One a tensor.
    controller : gcomm.gnmr.Controller, optional
        As in :func:`all_reduce`, with a unit a key. All travel in the highest format that one of them needs.
    """
    comm, timeout = resolve(group, "all_reduce_coalesced", timeout)
    return comm.all_reduce_coalesced(
        tensors, op, codec=codec, keys=keys, async_op=async_op, timeout=timeout, controller=controller
    )


def reduce_scatter_tensor(
    output: Any,
    input: Any,
    op: Any = "sum",
    group: Any = None,
    *,
    codec: CodecLike = "fp8_e4m3",
    key: str | None = None,
    async_op: bool = False,
    timeout: Timeout = None,
) -> Work | None:
    """Sums or averages ``input`` over all ranks and leaves rank r the r-th of ``size`` equal parts in
    ``output``.

    Each rank's values are quantised once; the sum is not.

    Parameters
    ----------
    output : array of n elements
        Written. It may be a part of input.
    input : array of size * n elements of the same element type: float32, bfloat16 or float16
    """
    comm, timeout = resolve(group, "reduce_scatter_tensor", timeout)
    return comm.reduce_scatter_tensor(
        output, input, op, codec=codec, key=key, async_op=async_op, timeout=timeout
    )


def all_gather_into_tensor(
    output_tensor: Any,
    input_tensor: Any,
    group: Any = None,
    *,
    codec: CodecLike = None,
    key: str | None = None,
    async_op: bool = False,
    timeout: Timeout = None,
) -> Work | None:
    """Leaves everybody's ``input_tensor`` in ``output_tensor``, one after the other in rank order.

    With a codec all ranks, the owner too, get the decoded values: the same bits everywhere.

    Parameters
    ----------
    output_tensor : array of size * n elements
        Written.
    input_tensor : array of n elements of the same element type
        It may be a part of output_tensor.
    """
    comm, timeout = resolve(group, "all_gather_into_tensor", timeout)
    return comm.all_gather_into_tensor(
        output_tensor, input_tensor, codec=codec, key=key, async_op=async_op, timeout=timeout
    )


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    *,
    codec: CodecLike = None,
    key: str | None = None,
    async_op: bool = False,
    timeout: Timeout = None,
) -> Work | None:
    """Sends the r-th part of ``input`` to rank r, whose part for this rank ends up in ``output``.

    A rank's part for itself is copied as it is, codec or not.

    Parameters
    ----------
    output, input : arrays of one element type
    output_split_sizes, input_split_sizes : sequence of int, optional
        Rows of the first axis from and for each rank; equal parts if not given.
    """
    comm, timeout = resolve(group, "all_to_all_single", timeout)
    return comm.all_to_all_single(
        output,
        input,
        output_split_sizes,
        input_split_sizes,
        codec=codec,
        key=key,
        async_op=async_op,
        timeout=timeout,
    )


def broadcast(
    tensor: Any,
    src: int = 0,
    group: Any = None,
    *,
    codec: CodecLike = None,
    key: str | None = None,
    async_op: bool = False,
    timeout: Timeout = None,
) -> Work | None:
    """Leaves rank ``src``'s array in everybody's ``tensor``.

    With a codec the source, too, gets the decoded values: the same bits everywhere.

    Parameters
    ----------
    tensor : array
        Read on src, written elsewhere.
    src : int
        As in torch: the global rank where group is a torch group; the communicator's where it is a
        Communicator.
    """
    comm, timeout = resolve(group, "broadcast", timeout)
    return comm.broadcast(
        tensor,
        to_group_rank(group, src, "broadcast", "src"),
        codec=codec,
        key=key,
        async_op=async_op,
        timeout=timeout,
    )


def send(
    tensor: Any,
    dst: int,
    group: Any = None,
    *,
    codec: CodecLike = None,
    key: str | None = None,
    async_op: bool = False,
    timeout: Timeout = None,
) -> Work | None:
    """Sends an array to rank ``dst``, which calls :func:`recv`. Complete once dst has received it.

    Parameters
    ----------
    tensor : array
    dst : int
        The global rank where group is a torch group; the communicator's where it is a Communicator.
    """
    comm, timeout = resolve(group, "send", timeout)
    return comm.send(
        tensor,
        to_group_rank(group, dst, "send", "dst"),
        codec=codec,
        key=key,
        async_op=async_op,
        timeout=timeout,
    )


def recv(
    tensor: Any,
    src: int,
    group: Any = None,
    *,
    codec: CodecLike = None,
    key: str | None = None,
    async_op: bool = False,
    timeout: Timeout = None,
) -> Work | None:
    """Receives into ``tensor`` what rank ``src`` sends with :func:`send`.

    Parameters
    ----------
    tensor : array
        Written. Element type and count are those of the sender.
    src : int
        The global rank where group is a torch group; the communicator's where it is a Communicator.
    """
    comm, timeout = resolve(group, "recv", timeout)
    return comm.recv(
        tensor,
        to_group_rank(group, src, "recv", "src"),
        codec=codec,
        key=key,
        async_op=async_op,
        timeout=timeout,
    )


def barrier(group: Any = None, *, async_op: bool = False, timeout: Timeout = None) -> Work | None:
    """Waits until every rank of the group has called it."""
    comm, timeout = resolve(group, "barrier", timeout)
    return comm.barrier(async_op=async_op, timeout=timeout)
