"""Transports written in Python: the example with real processes, and runtimes that fail."""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import gcomm
from gcomm.runtimes import Op

EXAMPLE = Path(__file__).parents[2] / "examples" / "socket_runtime.py"


def test_example() -> None:
    finished = subprocess.run(
        [sys.executable, EXAMPLE, "3"], capture_output=True, text=True, timeout=60, check=True
    )
    # Not by lines: three processes write them at the same time.
    ranks = sorted(re.findall("<[^>]*>", finished.stdout))
    assert ranks == [f"<gcomm.Communicator rank {rank} of 3 over sockets>" for rank in range(3)]


class Queues:
    """Ranks as threads, a queue for each (source, destination, lane)."""

    def __init__(self, rank: int, queues: dict[tuple[int, int, int], queue.SimpleQueue[bytes]]) -> None:
        self.rank = rank
        self.queues = queues
        self.calls: list[str] = []
        self.error: Exception | None = None

    def post(self, ops: Sequence[Op]) -> Sequence[Op]:
        for op in ops:
            if not op.receives:
                assert op.data.readonly
                self._queue(self.rank, op.peer, op.lane).put(bytes(op.data))
        return ops

    def wait(self, tickets: Sequence[Op], timeout: float) -> None:
        end = time.monotonic() + timeout
        for op in tickets:
            if self.error is not None:
                raise self.error
            if op.receives:
                try:
                    data = self._queue(op.peer, self.rank, op.lane).get(timeout=max(end - time.monotonic(), 0))
                except queue.Empty:
                    raise TimeoutError(f"nothing from {op.peer}") from None
                op.data[: len(data)] = data

    def abort(self) -> None:
        self.calls.append("abort")

    def close(self) -> None:
        self.calls.append("close")

    def _queue(self, source: int, destination: int, lane: int) -> queue.SimpleQueue[bytes]:
        return self.queues.setdefault((source, destination, lane), queue.SimpleQueue())


def pair() -> tuple[list[Queues], list[gcomm.Communicator]]:
    queues: dict[tuple[int, int, int], queue.SimpleQueue[bytes]] = {}
    runtimes = [Queues(rank, queues) for rank in range(2)]
    return runtimes, [gcomm.Communicator.from_runtime(runtime, r, 2) for r, runtime in enumerate(runtimes)]


def test_sums_and_closes() -> None:
    runtimes, comms = pair()
    arrays = [np.full(100_000, rank + 1, np.float32) for rank in range(2)]
    threads = [
        threading.Thread(target=comm.all_reduce, args=(x,), kwargs={"codec": None})
        for comm, x in zip(comms, arrays, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arrays[0].tolist() == arrays[1].tolist() == [3.0] * 100_000
    assert comms[0].transport == "callback"
    for comm in comms:
        comm.close()
    assert [runtime.calls for runtime in runtimes] == [["close"]] * 2


@pytest.mark.parametrize(
    ("raised", "kind", "rank"),
    [
        (gcomm.errors.PeerLostError("rank 1 fell over", 1), gcomm.errors.PeerLostError, 1),
        (ConnectionResetError("reset"), gcomm.errors.PeerLostError, None),
        (TimeoutError("late"), gcomm.errors.TimeoutError, None),
        (gcomm.errors.TimeoutError("rank 1 is late", 1), gcomm.errors.TimeoutError, 1),
        (KeyError("a bug of the runtime's"), gcomm.errors.InternalError, None),
    ],
)
def test_what_a_runtime_raises(
    raised: Exception, kind: type[gcomm.errors.GcommError], rank: int | None
) -> None:
    runtimes, comms = pair()
    runtimes[0].error = raised
    with pytest.raises(kind, match=str(raised.args[0])) as caught:
        comms[0].all_reduce(np.ones(100_000, np.float32))
    assert caught.value.rank == rank
    assert runtimes[0].calls == ["abort"]
    for comm in comms:
        comm.close()


def test_late() -> None:
    _, comms = pair()
    with pytest.raises(gcomm.errors.TimeoutError, match="nothing from 1"):
        comms[0].all_reduce(np.ones(100_000, np.float32), timeout=0.2)
    for comm in comms:
        comm.close()


@pytest.mark.parametrize(("variable", "value"), [("GCOMM_ISA", "mmx"), ("GCOMM_TIMEOUT", "soon")])
def test_an_environment_that_is_wrong(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    runtime = Queues(0, {})
    with pytest.raises(gcomm.errors.InvalidArgumentError, match=f"{variable}: .*'{value}'"):
        gcomm.Communicator.from_runtime(runtime, 0, 2)
    assert runtime.calls == []


def test_far_too_many_ranks() -> None:
    """Refused before memory is asked for."""
    with pytest.raises(gcomm.errors.InvalidArgumentError, match=r"callbacks\.size: 2147483647"):
        gcomm.Communicator.from_runtime(Queues(0, {}), 0, 2**31 - 1)
    with pytest.raises(gcomm.errors.InvalidArgumentError, match=r"n: 2147483647 ranks.*expected 1 to 1024"):
        gcomm.Communicator.local(2**31 - 1)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_shapes_that_cannot_be(rank: int, size: int) -> None:
    with pytest.raises(gcomm.errors.InvalidArgumentError, match="from_runtime"):
        gcomm.Communicator.from_runtime(Queues(0, {}), rank, size)
