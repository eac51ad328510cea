"""A transport of Python queues between threads, by the callbacks of the C ABI, that keeps every message it
carries.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ranks import RankError

import gcomm
from gcomm import _native

OK, TIMEOUT, PEER_LOST, ABORTED = 0, 3, 4, 7


@dataclass(frozen=True)
class Sent:
    """One message on the wire."""

    source: int
    target: int
    lane: int
    data: bytes


class Wire:
    """What the ranks share. ``alter`` may change a message on its way."""

    def __init__(self, size: int, alter: Callable[[Sent], bytes] | None = None) -> None:
        self.size = size
        self.sent: list[Sent] = []
        self.alter = alter
        self.changed = threading.Condition()
        self.aborted = False
        # What was sent from a rank to a rank on a lane, in order, and how many receives were posted for it.
        self.mail: dict[tuple[int, int, int], list[bytes]] = defaultdict(list)
        self.posted: dict[tuple[int, int, int], int] = defaultdict(int)


class Tap:
    """One rank's end, in the shape that bindings/callbacks.cpp calls."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._wire = wire
        self._rank = rank
        self._next = 0
        self._receives: dict[int, tuple[tuple[int, int, int], int, int, int]] = {}

    def post(self, ops: Sequence[tuple[bool, int, int, int, int]]) -> tuple[int, int, str, int]:
        """Sends arrive at once, receives take their place in the queue."""
        wire = self._wire
        with wire.changed:
            first = self._next
            for is_recv, lane, peer, address, size in ops:
                if is_recv:
                    way = (peer, self._rank, lane)
                    self._receives[self._next] = (way, wire.posted[way], address, size)
                    wire.posted[way] += 1
                else:
                    sent = Sent(self._rank, peer, lane, ctypes.string_at(address, size))
                    wire.sent.append(sent)
                    wire.mail[self._rank, peer, lane].append(wire.alter(sent) if wire.alter else sent.data)
                self._next += 1
            wire.changed.notify_all()
        return OK, first, "", -1

    def wait_all(self, tickets: Sequence[int], timeout_s: float) -> tuple[int, str, int]:
        """Waits for the messages that belong to the receives among the tickets."""
        wire = self._wire
        deadline = time.monotonic() + timeout_s
        for ticket in tickets:
            if ticket not in self._receives:
                continue
            way, index, address, size = self._receives.pop(ticket)
            with wire.changed:
                while len(wire.mail[way]) <= index:
                    if wire.aborted:
                        return ABORTED, "the wire was aborted", way[0]
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return TIMEOUT, f"nothing from rank {way[0]}", way[0]
                    wire.changed.wait(left)
                data = wire.mail[way][index]
            assert len(data) <= size
            ctypes.memmove(address, data, len(data))
        return OK, "", -1

    def abort(self) -> None:
        """Wakes everybody."""
        with self._wire.changed:
            self._wire.aborted = True
            self._wire.changed.notify_all()

    def close(self) -> None:
        """Nothing to free."""


def run_tapped(
    fn: Callable[..., Any], size: int, *args: Any, alter: Callable[[Sent], bytes] | None = None
) -> tuple[list[Any], list[Sent]]:
    """fn(comm, *args) on every rank in threads: what each returned or raised, and every message."""
    wire = Wire(size, alter)
    comms = [
        gcomm.Communicator(_native.callbacks(Tap(wire, rank), "wiretap", rank, size, 0)) for rank in range(size)
    ]
    results: list[Any] = [None] * size

    def body(rank: int) -> None:
        try:
            results[rank] = fn(comms[rank], *args)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    for comm in comms:
        comm.abort("the test is over")
        comm.close()
    if late:
        raise RankError([])
    return results, list(wire.sent)
