"""``transport="torch"``: torch's own send and receive, over a private gloo group.

A group of our own, so that no message ever meets the user's traffic. What gloo demands, found by trying: a
message longer than its posted receive ends the process (the core posts every receive at slot size, so none is);
a wait that times out breaks all connections of its group, which is also the only way to give up a wait of
another thread (see ``abort``); its works can't be polled; and buffers may be touched after a wait has failed
(the core keeps them).
"""

from __future__ import annotations

import ctypes
import datetime
import re
import threading
from collections.abc import Sequence
from typing import Any

from . import _native
from .errors import UnsupportedError

_OK = 0
_TIMEOUT = 3
_PEER_LOST = 4
_ABORTED = 7
_INTERNAL = 11

# What gloo sends beside a message: its own preamble, and the two notices by which both ends agree to transfer.
_OVERHEAD_BYTES = 3 * 48
# A tag that no lane uses.
_ABORT_TAG = 99
# Views of the core's buffers that are kept for reuse. They are few (the core reuses its workspace).
_MOST_VIEWS = 4096

# What gloo says.
_LATE = re.compile(r"[Tt]imed out|[Tt]imeout")
_LOST = re.compile(r"[Cc]onnection|reset by peer|Broken pipe|closed")

Op = tuple[bool, int, int, int, int]


def connect_gloo(group: Any, token: str) -> _native.Comm:
    """A communicator over a private gloo group of the same ranks; collective."""
    from ._torch_group import distributed, group_store

    dist = distributed()
    store = group_store(group)
    if store is None:
        raise UnsupportedError(
            "from_torch: transport='torch' needs a torch whose groups have get_group_store()"
        )
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    # The token, random and the same on all ranks, keeps several communicators of one group apart.
    store = dist.PrefixStore(f"gcomm/{token}", store)
    gloo = dist.ProcessGroupGloo(store, rank, size, datetime.timedelta(minutes=5))
    return _native.callbacks(GlooTransport(gloo, store, size), "torch", rank, size, _OVERHEAD_BYTES)


class GlooTransport:
    """What bindings/callbacks.cpp calls, from several threads."""

    def __init__(self, gloo: Any, store: Any, size: int) -> None:
        import torch

        self._torch = torch
        self._gloo = gloo
        self._store = store
        self._size = size
        self._next_ticket = 0
        self._pending: dict[int, tuple[Any, int]] = {}  # ticket -> work, peer
        self._views: dict[tuple[int, int], list[Any]] = {}
        # Works whose wait failed: gloo may still hold their memory.
        self._failed: list[Any] = []
        self._failure: tuple[int, str] | None = None
        self._lock = threading.Lock()

    def post(self, ops: Sequence[Op]) -> tuple[int, int, str]:
        """Starts transfers: (result, first ticket, text)."""
        if self._failure is not None:
            return self._failure[0], 0, self._failure[1]
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
            result, text, _ = self._fail([(peer, error)], 0.0)
            return result, 0, text
        with self._lock:
            first = self._next_ticket
            self._next_ticket += len(started)
            self._pending.update(enumerate(started, first))
        return _OK, first, ""

    def wait_all(self, tickets: Sequence[int], timeout_s: float) -> tuple[int, int, str]:
        """Waits for transfers: (result, position of the one that failed or -1, text)."""
        limit = datetime.timedelta(seconds=max(timeout_s, 0.001))
        pending = self._pending
        errors: list[tuple[int, RuntimeError]] = []
        peers: list[int] = []
        for ticket in tickets:
            work, peer = pending.pop(ticket)
            peers.append(peer)
            try:
                work.wait(limit)
            except RuntimeError as error:
                # The others only say, at once, whether they had completed.
                limit = datetime.timedelta(milliseconds=1)
                errors.append((peer, error))
                self._failed.append(work)
        if not errors:
            return _OK, -1, ""
        result, text, culprit = self._fail(errors, timeout_s)
        return result, peers.index(culprit) if culprit in peers else -1, text

    def abort(self) -> None:
        """Fails everything that is pending, here and on the peers.

        gloo has no call for that, but a receive that times out breaks all connections of its group: receive
        something that nobody sends.
        """
        if self._failure is None:
            self._failure = (_ABORTED, "the communicator was aborted")
        for peer in range(self._size):
            try:
                work = self._gloo.recv([self._torch.empty(1, dtype=self._torch.uint8)], peer, _ABORT_TAG)
                self._failed.append(work)
                work.wait(datetime.timedelta(milliseconds=1))
            except (RuntimeError, ValueError):
                continue

    def close(self) -> None:
        """Nothing comes after it."""
        self._pending.clear()
        self._views.clear()

    def _view(self, address: int, size: int) -> list[Any]:
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
        memory = (ctypes.c_uint8 * max(size, 1)).from_address(address)
        view = [self._torch.frombuffer(memory, dtype=self._torch.uint8)[:size]]
        self._views[address, size] = view
        return view

    def _fail(self, errors: list[tuple[int, RuntimeError]], timeout_s: float) -> tuple[int, str, int]:
        """The failure (result, text, rank at fault or -1) that these errors of peers amount to."""
        lost = sorted({peer for peer, error in errors if _LOST.search(str(error))})
        late = sorted({peer for peer, error in errors if _LATE.search(str(error))})
        first = str(errors[0][1])
        if _LATE.search(first):
            culprit = late[0] if len(late) == 1 else -1
            failure = (_TIMEOUT, f"no message from rank {_text(late)} within {timeout_s:.3g} s")
        elif lost:
            culprit = self._first_lost(lost[0])
            failure = (_PEER_LOST, f"rank {culprit} ended or its connection broke (gloo: {first})")
        else:
            culprit = errors[0][0]
            failure = (_INTERNAL, f"gloo, with rank {culprit}: {first}")
        if self._failure is None:
            self._failure = failure
        return *failure, culprit

    def _first_lost(self, peer: int) -> int:
        """Who was lost first. A rank that loses a peer leaves in its turn, so others may see that one only."""
        try:
            return int(self._store.compare_set("lost", "", str(peer)))
        except (RuntimeError, ValueError):  # the store may have been the lost rank's
            return peer


def _text(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
