"""``transport="mpi4py"``: mpi4py's own send and receive, for an MPI that the native transport can't use.

A duplicate of the communicator for each lane, so that none meets another's messages or the user's, and one on
which ranks tell each other why they fail. MPI has no wait with a deadline: a wait asks again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._rendezvous import Deadline
from .errors import AbortedError, GcommError, PeerLostError, TimeoutError
from .runtimes import Op

_LANES = 3
# How often a wait looks for messages before it begins to sleep in between.
_EAGER_LOOKS = 200
_PAUSE_S = 50e-6
# What a closing rank grants its last sends.
_CLOSE_S = 2.0


@dataclass(frozen=True, eq=False)  # a set tells them apart by identity: requests can't be hashed
class _Transfer:
    request: Any
    peer: int
    receives: bool


class Mpi4pyRuntime:
    """A :class:`gcomm.runtimes.Runtime` over an mpi4py communicator."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi = mpi
        self._rank = comm.Get_rank()
        self._size = comm.Get_size()
        self._comms = [comm.Dup() for _ in range(_LANES + 1)]
        for made in self._comms:
            made.Set_errhandler(mpi.ERRORS_RETURN)
        self._control = self._comms[-1]
        self._under_way: set[_Transfer] = set()
        self._notices: list[Any] = []  # requests of what is told to peers
        self._failure: GcommError | None = None
        self._lock = threading.Lock()

    def post(self, ops: Sequence[Op]) -> list[_Transfer]:
        """Start messages."""
        if self._failure is not None:
            raise self._failure
        started = []
        peer = -1
        try:
            for receives, lane, peer, data in ops:
                part = [data, len(data), self._mpi.BYTE]
                comm = self._comms[lane]
                request = comm.Irecv(part, peer) if receives else comm.Isend(part, peer)
                started.append(_Transfer(request, peer, receives))
        except self._mpi.Exception as error:
            raise self._fail(_lost(peer, error)) from None
        finally:
            with self._lock:
                self._under_way.update(started)
        return started

    def wait(self, tickets: Sequence[_Transfer], timeout: float) -> None:
        """Wait until these messages have been carried."""
        deadline = Deadline(timeout)
        left = list(tickets)
        looks = 0
        while left := self._not_carried(left):
            if self._failure is not None or self._heard():
                raise self._failure  # type: ignore[misc]  # set where heard
            if deadline.passed:
                late = sorted({transfer.peer for transfer in left})
                text = f"no message from rank {', '.join(map(str, late))} within {timeout:.3g} s"
                raise self._fail(TimeoutError(text, late[0] if len(late) == 1 else None))
            looks += 1
            time.sleep(0 if looks < _EAGER_LOOKS else _PAUSE_S)
        with self._lock:
            self._under_way.difference_update(tickets)

    def abort(self) -> None:
        """Fail everything that is pending, here and on the peers."""
        self._fail(AbortedError(f"rank {self._rank} aborted the communicator", self._rank))

    def close(self) -> None:
        """The end. The duplicates are left to MPI's end: a peer may still be sending."""
        deadline = Deadline(_CLOSE_S)
        leaving = list(self._notices)
        if self._failure is None:
            leaving += [transfer.request for transfer in self._under_way if not transfer.receives]
        self._wait_for(leaving, deadline)
        coming = [transfer.request for transfer in self._under_way if transfer.receives]
        for request in coming:
            request.Cancel()
        self._wait_for(coming, deadline)
        self._under_way.clear()

    def _wait_for(self, requests: list[Any], deadline: Deadline) -> None:
        for request in requests:
            try:
                while not request.Test() and not deadline.passed:
                    time.sleep(_PAUSE_S)
            except self._mpi.Exception:
                continue  # its peer is lost; others may not be

    def _not_carried(self, transfers: list[_Transfer]) -> list[_Transfer]:
        left = []
        for transfer in transfers:
            try:
                if not transfer.request.Test():
                    left.append(transfer)
            except self._mpi.Exception as error:
                raise self._fail(_lost(transfer.peer, error)) from None
        return left

    def _heard(self) -> bool:
        """Whether a peer tells of its failure, which is this rank's from now on."""
        with self._lock:
            try:
                if not self._control.Iprobe():
                    return False
                self._failure = self._control.recv()
            except self._mpi.Exception:
                return False
        return True

    def _fail(self, failure: GcommError) -> GcommError:
        """The failure that came first, after telling the others if it is this one."""
        with self._lock:
            if self._failure is not None:
                return self._failure
            self._failure = failure
        for peer in range(self._size):
            if peer != self._rank:
                try:
                    self._notices.append(self._control.isend(failure, peer))
                except self._mpi.Exception:
                    continue
        return failure


def _lost(peer: int, error: Exception) -> PeerLostError:
    return PeerLostError(f"rank {peer} ended or its connection broke (MPI: {error})", peer)
