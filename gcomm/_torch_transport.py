"""``transport="torch"``: torch's own send and receive, over a private gloo group.

A group of our own, so that no message ever meets the user's traffic. What gloo demands, found by trying: a
message longer than its posted receive ends the process (the core posts every receive at slot size, so none is);
a wait that times out breaks all connections of its rank, which is also the only way to give up a wait of
another thread (see ``_break``); its works can't be polled; and buffers may be touched after a wait has failed
(the core keeps them).

A rank that breaks its connections is noticed only by those who exchange something with it at that moment. So
the reason of the first failure goes into the group's store, and a rank that waits for long looks there.
"""

from __future__ import annotations

import ctypes
import datetime
import itertools
import json
import re
import select
import socket
import threading
from collections.abc import Sequence
from typing import Any

from . import _native
from ._rendezvous import Deadline, distributed, group_store, within
from ._results import ABORTED, INTERNAL, OK, PEER_LOST, TIMEOUT, Failure, Op
from .errors import PeerLostError, UnsupportedError

# What gloo sends beside a message: its own preamble, and the two notices by which both ends agree to transfer.
_OVERHEAD_BYTES = 3 * 48
# A tag that no lane uses.
_ABORT_TAG = 99
# Views of the core's buffers that are kept for reuse. They are few (the core reuses its workspace).
_MOST_VIEWS = 4096
# How often a rank that waits looks for the failure of another one.
_LOOK_PERIOD_S = 0.25
# How long a process that ends may take to close its connections, one after the other.
_ENDING_S = 0.05

# What gloo says.
_LATE = re.compile(r"[Tt]imed out|[Tt]imeout")
_LOST = re.compile(r"[Cc]onnection|reset by peer|Broken pipe|closed")


def connect_gloo(group: Any, token: str, deadline: Deadline, verb: str) -> _native.Comm:
    """A communicator over a private gloo group of the same ranks; collective."""
    dist = distributed()
    store = group_store(group)
    if store is None:
        raise UnsupportedError(f"{verb}: transport='torch' needs a torch whose groups have get_group_store()")
    rank, size = group.rank(), group.size()
    # The token, random and the same on all ranks, keeps several communicators of one group apart.
    store = dist.PrefixStore(f"gcomm/{token}", store)
    gloo = within(
        deadline,
        lambda: dist.ProcessGroupGloo(store, rank, size, datetime.timedelta(minutes=5)),
        f"{verb} on rank {rank}: the private gloo group was not connected",
    )
    board = Board(store, deadline, f"{verb} on rank {rank}")
    return _native.callbacks(GlooTransport(gloo, board, rank, size), "torch", rank, size, _OVERHEAD_BYTES)


class Board:
    """Where the first failure of the communicator is written down, for all ranks to see."""

    def __init__(self, store: Any, deadline: Deadline, where: str) -> None:
        from ._torch_group import tcp_store

        self._store = store
        server = tcp_store(store)
        # Says nothing, and breaks when the store's process ends: to a call of a store that is gone torch
        # answers with pages on stderr.
        self._line: socket.socket | None = None
        if server is not None:
            try:
                self._line = socket.create_connection((server.host, server.port), deadline.left)
            except OSError as error:
                raise PeerLostError(
                    f"{where}: the group's store at {server.host}:{server.port} can't be reached: {error}"
                ) from None

    def first(self, failure: Failure) -> Failure:
        """Writes a failure down, unless another one is there already; gives back the one that is."""
        if self._gone():
            return failure
        try:
            return Failure(*json.loads(self._store.compare_set("failure", "", json.dumps(failure))))
        except RuntimeError:
            return failure

    def look(self) -> Failure | None:
        """The first failure, if there is one."""
        lost = Failure(PEER_LOST, "the process that has the group's store was lost", -1)
        if self._gone():
            return lost
        try:
            return Failure(*json.loads(self._store.get("failure"))) if self._store.check(["failure"]) else None
        except RuntimeError:
            return lost

    def close(self) -> None:
        """Hangs up."""
        if self._line is not None:
            self._line.close()

    def _gone(self) -> bool:
        # A line that has something to read has come to its end.
        return self._line is not None and bool(select.select([self._line], [], [], _ENDING_S)[0])


class GlooTransport:
    """What bindings/callbacks.cpp calls, from several threads."""

    def __init__(self, gloo: Any, board: Board, rank: int, size: int) -> None:
        import torch

        self._torch = torch
        self._gloo = gloo
        self._board = board
        self._rank = rank
        self._size = size
        self._next_ticket = 0
        self._pending: dict[int, tuple[Any, int]] = {}  # ticket -> work, peer
        self._views: dict[tuple[int, int], list[Any]] = {}
        # Works whose wait failed: gloo may still hold their memory.
        self._failed: list[Any] = []
        self._failure: Failure | None = None
        self._lock = threading.Lock()
        self._wait_numbers = itertools.count()
        self._waits: set[int] = set()  # under way
        self._closed = threading.Event()
        # Started here and now: at its end the interpreter starts no thread.
        self._watcher = threading.Thread(target=self._watch, name="gcomm-watch", daemon=True)
        self._watcher.start()

    def post(self, ops: Sequence[Op]) -> tuple[int, int, str, int]:
        """Starts transfers: (result, first ticket, text, rank at fault or -1)."""
        if self._failure is not None:
            return self._failure.result, 0, self._failure.text, self._failure.rank
        gloo, views = self._gloo, self._views
        started: list[tuple[Any, int]] = []
        peer = -1
        try:
            for is_recv, lane, peer, address, size in ops:
                view = views.get((address, size))
                if view is None:
                    view = self._view(address, size)
                started.append((gloo.recv(view, peer, lane) if is_recv else gloo.send(view, peer, lane), peer))
        except RuntimeError as error:
            self._failed.extend(started)
            failure = self._fail([(peer, error)], 0.0)
            return failure.result, 0, failure.text, failure.rank
        with self._lock:
            first = self._next_ticket
            self._next_ticket += len(started)
            self._pending.update(enumerate(started, first))
        return OK, first, "", -1

    def wait_all(self, tickets: Sequence[int], timeout_s: float) -> tuple[int, str, int]:
        """Waits for transfers: (result, text, rank at fault or -1)."""
        deadline = Deadline(timeout_s)
        number = next(self._wait_numbers)
        errors: list[tuple[int, RuntimeError]] = []
        self._waits.add(number)
        try:
            for ticket in tickets:
                work, peer = self._pending.pop(ticket)
                try:
                    # After an error the others only say, at once, whether they had completed.
                    work.wait(datetime.timedelta(seconds=0.001 if errors else deadline.left))
                except RuntimeError as error:
                    errors.append((peer, error))
                    self._failed.append(work)
        finally:
            self._waits.discard(number)
        return (OK, "", -1) if not errors else self._fail(errors, timeout_s)

    def abort(self) -> None:
        """Fails everything that is pending, here and on the peers."""
        if self._failure is None:
            self._failure = self._board.first(
                Failure(ABORTED, f"rank {self._rank} aborted the communicator", self._rank)
            )
        self._break()

    def close(self) -> None:
        """Nothing comes after it."""
        self._closed.set()
        self._watcher.join()
        self._board.close()
        self._pending.clear()
        self._views.clear()

    def _view(self, address: int, size: int) -> list[Any]:
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
        memory = (ctypes.c_uint8 * max(size, 1)).from_address(address)
        view = [self._torch.frombuffer(memory, dtype=self._torch.uint8)[:size]]
        self._views[address, size] = view
        return view

    def _watch(self) -> None:
        """Ends waits that last, once some rank has failed."""
        before: set[int] = set()
        while not self._closed.wait(_LOOK_PERIOD_S):
            now = set(self._waits)
            failure = self._board.look() if before & now and self._failure is None else None
            if failure is not None:
                self._failure = failure
                self._break()
            before = now

    def _break(self) -> None:
        """Breaks all connections of this rank, which ends its waits and those of others for it.

        gloo has no call for that, but a receive that times out does it: receive something that nobody sends.
        """
        for peer in range(self._size):
            try:
                work = self._gloo.recv([self._torch.empty(1, dtype=self._torch.uint8)], peer, _ABORT_TAG)
                self._failed.append(work)
                work.wait(datetime.timedelta(milliseconds=1))
            except (RuntimeError, ValueError):
                continue

    def _fail(self, errors: list[tuple[int, RuntimeError]], timeout_s: float) -> Failure:
        """The failure that these errors of peers amount to, or the one that came first."""
        if self._failure is None:
            self._failure = self._board.first(_told(errors, timeout_s))
        return self._failure


def _told(errors: list[tuple[int, RuntimeError]], timeout_s: float) -> Failure:
    lost = sorted({peer for peer, error in errors if _LOST.search(str(error))})
    late = sorted({peer for peer, error in errors if _LATE.search(str(error))})
    first = str(errors[0][1])
    if _LATE.search(first):
        text = f"no message from rank {', '.join(map(str, late))} within {timeout_s:.3g} s"
        return Failure(TIMEOUT, text, late[0] if len(late) == 1 else -1)
    if lost:
        text = f"rank {lost[0]} ended or its connection broke (gloo: {first})"
        return Failure(PEER_LOST, text, lost[0])
    culprit = errors[0][0]
    return Failure(INTERNAL, f"gloo, with rank {culprit}: {first}", culprit)
