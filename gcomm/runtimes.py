"""Other runtimes' messages as a transport: anything that can send and receive bytes between ranks.

Write a class with the methods of :class:`Runtime` over your runtime's own messages and hand an object of it to
:meth:`gcomm.Communicator.from_runtime` on every rank. ``examples/socket_runtime.py`` is one over plain sockets.
"""

from __future__ import annotations

import builtins
import ctypes
import itertools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from . import _native, _results
from ._results import ABORTED, INTERNAL, OK, PEER_LOST, TIMEOUT, Failure
from .errors import AbortedError, GcommError, PeerLostError

__all__ = ["Op", "Runtime"]


class Op(NamedTuple):
    """One message that starts, in one direction.

    Attributes
    ----------
    receives : bool
        Whether it arrives here; else it is sent.
    lane : int
        0, 1 or 2. Messages of one lane and peer arrive in the order in which they were posted, each in the
        receive posted at the same position; those of different lanes must not wait for one another.
    peer : int
        The other rank.
    data : memoryview
        The bytes to send, or room for the longest message that may arrive (it may be shorter). Valid until its
        wait has returned; longer, after one that failed.
    """

    receives: bool
    lane: int
    peer: int
    data: memoryview


class Runtime(Protocol):
    """What gcomm needs of a runtime. Its threads call several of these at once."""

    def post(self, ops: Sequence[Op]) -> Sequence[Any]:
        """Start messages; a ticket (any object) for each. Must not wait for a peer."""

    def wait(self, tickets: Sequence[Any], timeout: float) -> None:
        """Wait until the messages of these tickets have been carried, at most ``timeout`` seconds.

        Raises
        ------
        TimeoutError
            They have not. A :class:`gcomm.errors.TimeoutError` can name the rank that is late.
        gcomm.errors.PeerLostError, ConnectionError
            A peer is gone. The first can name it.
        gcomm.errors.AbortedError
            A rank aborted; the error can name it.
        """

    def abort(self) -> None:
        """Fail all that is pending, here and, where the runtime can, on the peers."""

    def close(self) -> None:
        """The end: no call comes after it."""


def connect(runtime: Runtime, rank: int, size: int, name: str, overhead_bytes: int) -> _native.Comm:
    """The native communicator over a runtime."""
    return _native.callbacks(_Host(runtime), name, rank, size, overhead_bytes)


class _Host:
    """What bindings/callbacks.cpp calls: numbers in place of exceptions, addresses in place of views."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._numbers = itertools.count()
        self._tickets: dict[int, Any] = {}
        self._lock = threading.Lock()
        self.abort = runtime.abort
        self.close = runtime.close

    def post(self, ops: Sequence[_results.Op]) -> tuple[int, int, str, int]:
        try:
            tickets = self._runtime.post([Op(*op[:3], _view(op[3], op[4], writable=op[0])) for op in ops])
        except Exception as error:
            failure = _failure(error)
            return failure.result, 0, failure.text, failure.rank
        with self._lock:
            numbers = [next(self._numbers) for _ in ops]
            self._tickets.update(zip(numbers, tickets, strict=True))
        return OK, numbers[0] if numbers else 0, "", -1

    def wait_all(self, numbers: Sequence[int], timeout_s: float) -> tuple[int, str, int]:
        with self._lock:
            tickets = [self._tickets.pop(number) for number in numbers]
        try:
            self._runtime.wait(tickets, timeout_s)
        except Exception as error:
            return _failure(error)
        return OK, "", -1


def _view(address: int, size: int, *, writable: bool) -> memoryview:
    view = memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")
    return view if writable else view.toreadonly()


def _failure(error: Exception) -> Failure:
    rank = error.rank if isinstance(error, GcommError) and error.rank is not None else -1
    text = str(error) or type(error).__name__
    if isinstance(error, builtins.TimeoutError):  # gcomm's is one, too
        return Failure(TIMEOUT, text, rank)
    if isinstance(error, (PeerLostError, ConnectionError)):
        return Failure(PEER_LOST, text, rank)
    if isinstance(error, AbortedError):
        return Failure(ABORTED, text, rank)
    return Failure(INTERNAL, f"{type(error).__name__}: {text}", rank)
