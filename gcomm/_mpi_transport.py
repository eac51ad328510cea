"""``transport="mpi4py"``: mpi4py's own send and receive, for an MPI that the native transport can't use.

A duplicate of the communicator for each lane, so that none meets another's messages or the user's, and one on
which ranks tell each other why they fail. MPI has no wait with a deadline: a wait asks again and again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._rendezvous import Deadline

_OK = 0
_TIMEOUT = 3
_PEER_LOST = 4
_ABORTED = 7

_LANES = 3
# How often a wait looks for messages before it begins to sleep in between.
_EAGER_LOOKS = 200
_PAUSE_S = 50e-6
# What a closing rank grants its last sends.
_CLOSE_S = 2.0

Op = tuple[bool, int, int, int, int]


class Failure(NamedTuple):
    """As bindings/callbacks.cpp takes it."""

    result: int
    text: str
    rank: int  # at fault, or -1


class _Transfer(NamedTuple):
    request: Any
    peer: int
    receives: bool


class Mpi4pyTransport:
    """What bindings/callbacks.cpp calls, from several threads."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi = mpi
        self._rank = comm.Get_rank()
        self._size = comm.Get_size()
        self._comms = [comm.Dup() for _ in range(_LANES + 1)]
        for made in self._comms:
            made.Set_errhandler(mpi.ERRORS_RETURN)
        self._control = self._comms[-1]
        self._next_ticket = 0
        self._pending: dict[int, _Transfer] = {}  # by ticket
        self._notices: list[Any] = []  # requests under way, with their bytes
        self._failure: Failure | None = None
        self._lock = threading.Lock()

    def post(self, ops: Sequence[Op]) -> tuple[int, int, str, int]:
        """Starts transfers: (result, first ticket, text, rank at fault or -1)."""
        if self._failure is not None:
            return self._failure.result, 0, self._failure.text, self._failure.rank
        byte = self._mpi.BYTE
        started: list[_Transfer] = []
        peer = -1
        try:
            for is_recv, lane, peer, address, size in ops:
                part = [self._mpi.buffer.fromaddress(address, size), size, byte]
                comm = self._comms[lane]
                request = comm.Irecv(part, peer) if is_recv else comm.Isend(part, peer)
                started.append(_Transfer(request, peer, is_recv))
        except self._mpi.Exception as error:
            failure = self._fail(_lost(peer, error))
            return failure.result, 0, failure.text, failure.rank
        with self._lock:
            first = self._next_ticket
            self._next_ticket += len(started)
            self._pending.update(enumerate(started, first))
        return _OK, first, "", -1

    def wait_all(self, tickets: Sequence[int], timeout_s: float) -> tuple[int, str, int]:
        """Waits for transfers: (result, text, rank at fault or -1)."""
        deadline = Deadline(timeout_s)
        with self._lock:
            waiting = [self._pending.pop(ticket) for ticket in tickets]
        looks = 0
        while True:
            waiting, failure = self._still_waiting(waiting)
            if not waiting and failure is None:
                return _OK, "", -1
            failure = failure or self._failure or self._heard()
            if failure is None and deadline.passed:
                late = sorted({transfer.peer for transfer in waiting})
                text = f"no message from rank {', '.join(map(str, late))} within {timeout_s:.3g} s"
                failure = self._fail(Failure(_TIMEOUT, text, late[0] if len(late) == 1 else -1))
            if failure is not None:
                return failure
            looks += 1
            time.sleep(0 if looks < _EAGER_LOOKS else _PAUSE_S)

    def abort(self) -> None:
        """Fails everything that is pending, here and on the peers."""
        self._fail(Failure(_ABORTED, f"rank {self._rank} aborted the communicator", self._rank))

    def close(self) -> None:
        """Nothing comes after it. The duplicates are left to MPI's end: a peer may still be sending."""
        deadline = Deadline(_CLOSE_S)
        leaving = [request for request, _ in self._notices]
        if self._failure is None:
            leaving += [transfer.request for transfer in self._pending.values() if not transfer.receives]
        self._wait_for(leaving, deadline)
        coming = [transfer.request for transfer in self._pending.values() if transfer.receives]
        for request in coming:
            request.Cancel()
        self._wait_for(coming, deadline)
        self._pending.clear()

    def _wait_for(self, requests: list[Any], deadline: Deadline) -> None:
        try:
            for request in requests:
                while not request.Test() and not deadline.passed:
                    time.sleep(_PAUSE_S)
        except self._mpi.Exception:
            return  # with a peer that is lost there is nothing left to wait for

    def _still_waiting(self, waiting: list[_Transfer]) -> tuple[list[_Transfer], Failure | None]:
        left = []
        for transfer in waiting:
            try:
                if not transfer.request.Test():
                    left.append(transfer)
            except self._mpi.Exception as error:
                return waiting, self._fail(_lost(transfer.peer, error))
        return left, None

    def _heard(self) -> Failure | None:
        """What a peer says about its failure."""
        with self._lock:
            try:
                if not self._control.Iprobe():
                    return None
                self._failure = Failure(*json.loads(self._control.recv()))
            except self._mpi.Exception:
                return None
        return self._failure

    def _fail(self, failure: Failure) -> Failure:
        """The failure that came first, after telling the others if it is this one."""
        with self._lock:
            if self._failure is not None:
                return self._failure
            self._failure = failure
        text = json.dumps(failure)
        for peer in range(self._size):
            if peer != self._rank:
                try:
                    self._notices.append((self._control.isend(text, peer), text))
                except self._mpi.Exception:
                    continue
        return failure


def _lost(peer: int, error: Exception) -> Failure:
    return Failure(_PEER_LOST, f"rank {peer} ended or its connection broke (MPI: {error})", peer)
