"""The collectives that ``gcomm bench`` measures: one row each, on one shared driver (gcomm.cli.bench_rank)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gcomm
from gcomm.cli.buffers import Buffer


@dataclass(frozen=True)
class Call:
    """What a row's functions get: the rank's buffers and the arguments of one call.

    ``output`` is ``input`` itself where the collective works in place.
    """

    comm: gcomm.Communicator
    input: Buffer
    output: Buffer
    op: str
    codec: str | None
    key: str | None
    async_op: bool

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of every verb that takes a codec."""
        return {"codec": self.codec, "key": self.key, "async_op": self.async_op}


Works = list[gcomm.Work]


@dataclass(frozen=True)
class Collective:
    """One collective.

    Attributes
    ----------
    name:
        What it is called on the command line.
    reduces:
        It sums: ``--op`` applies, the data are floating-point numbers.
    in_place:
        The result replaces the input.
    replicated:
        Every rank must end with the same bits.
    factor:
        Bus bandwidth over algorithm bandwidth, from the number of ranks.
    split:
        The size column counts all ranks' parts, the count column one of them (as in nccl-tests).
    parts_in, parts_out:
        Parts of ``count`` elements in a rank's input and output, from the number of ranks.
    source:
        ``(rank, size, part)`` -> (rank, part) of the input that output part ``part`` comes from; reductions
        take that part of every rank's input.
    run:
        Starts the call; returns its works (none where the call has already completed).
    """

    name: str
    reduces: bool
    in_place: bool
    replicated: bool
    factor: Callable[[int], float]
    split: bool
    parts_in: Callable[[int], int]
    parts_out: Callable[[int], int]
    source: Callable[[int, int, int], tuple[int, int]]
    run: Callable[[Call], Works]


def _works(*works: gcomm.Work | None) -> Works:
    return [work for work in works if work is not None]


def _all_reduce(call: Call) -> Works:
    return _works(gcomm.all_reduce(call.input.tensor, call.op, call.comm, **call.options))


def _reduce_scatter(call: Call) -> Works:
    return _works(
        gcomm.reduce_scatter_tensor(call.output.tensor, call.input.tensor, call.op, call.comm, **call.options)
    )


def _all_gather(call: Call) -> Works:
    return _works(
        gcomm.all_gather_into_tensor(call.output.tensor, call.input.tensor, call.comm, **call.options)
    )


def _all_to_all(call: Call) -> Works:
    return _works(
        gcomm.all_to_all_single(call.output.tensor, call.input.tensor, group=call.comm, **call.options)
    )


def _broadcast(call: Call) -> Works:
    return _works(gcomm.broadcast(call.input.tensor, 0, call.comm, **call.options))


def _send_recv(call: Call) -> Works:
    """A ring: every rank sends to the next and receives from the one before, both at once."""
    comm, options = call.comm, {**call.options, "async_op": True}
    receiving = gcomm.recv(call.output.tensor, (comm.rank - 1) % comm.size, comm, **options)
    sending = gcomm.send(call.input.tensor, (comm.rank + 1) % comm.size, comm, **options)
    works = _works(receiving, sending)
    if not call.async_op:
        for work in works:
            work.wait()
        return []
    return works


def _barrier(call: Call) -> Works:
    return _works(gcomm.barrier(call.comm, async_op=call.async_op))


def _one(_size: int) -> int:
    return 1


def _none(_size: int) -> int:
    return 0


def _ranks(size: int) -> int:
    return size


def _unit(_size: int) -> float:
    return 1.0


def _others(size: int) -> float:
    return (size - 1) / size


COLLECTIVES = {
    row.name: row
    for row in (
        Collective(
            "all_reduce",
            reduces=True,
            in_place=True,
            replicated=True,
            factor=lambda size: 2 * (size - 1) / size,
            split=False,
            parts_in=_one,
            parts_out=_one,
            source=lambda _rank, _size, _part: (0, 0),
            run=_all_reduce,
        ),
        Collective(
            "reduce_scatter",
            reduces=True,
            in_place=False,
            replicated=False,
            factor=_others,
            split=True,
            parts_in=_ranks,
            parts_out=_one,
            source=lambda rank, _size, _part: (0, rank),
            run=_reduce_scatter,
        ),
        Collective(
            "all_gather",
            reduces=False,
            in_place=False,
            replicated=True,
            factor=_others,
            split=True,
            parts_in=_one,
            parts_out=_ranks,
            source=lambda _rank, _size, part: (part, 0),
            run=_all_gather,
        ),
        Collective(
            "all_to_all",
            reduces=False,
            in_place=False,
            replicated=False,
            factor=_others,
            split=True,
            parts_in=_ranks,
            parts_out=_ranks,
            source=lambda rank, _size, part: (part, rank),
            run=_all_to_all,
        ),
        Collective(
            "broadcast",
            reduces=False,
            in_place=True,
            replicated=True,
            factor=_unit,
            split=False,
            parts_in=_one,
            parts_out=_one,
            source=lambda _rank, _size, _part: (0, 0),
            run=_broadcast,
        ),
        Collective(
            "send_recv",
            reduces=False,
            in_place=False,
            replicated=False,
            factor=_unit,
            split=False,
            parts_in=_one,
            parts_out=_one,
            source=lambda rank, size, _part: ((rank - 1) % size, 0),
            run=_send_recv,
        ),
        Collective(
            "barrier",
            reduces=False,
            in_place=True,
            replicated=False,
            factor=_unit,
            split=False,
            parts_in=_none,
            parts_out=_none,
            source=lambda _rank, _size, _part: (0, 0),
            run=_barrier,
        ),
    )
}
