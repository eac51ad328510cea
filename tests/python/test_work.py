"""Work: waiting, futures, and what is kept alive until when."""

from __future__ import annotations

import concurrent.futures
import datetime
import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_local

from gcomm import Communicator, Work, errors


def _start(comm: Communicator, x: Any, **how: Any) -> Work:
    work = comm.all_reduce(x, codec=None, async_op=True, **how)
    assert work is not None
    return work


def _waits(comm: Communicator) -> None:
    x = torch.ones(3)
    work = _start(comm, x)
    assert work.wait() is True
    assert work.wait(timeout=1.0) is True
    assert work.wait(datetime.timedelta(seconds=1)) is True
    assert work.is_completed()
    assert x.tolist() == [2.0] * 3
    # Many in flight, completed in the order in which they were made.
    tensors = [torch.full((1000,), float(i)) for i in range(50)]
    works = [_start(comm, t) for t in tensors]
    works[-1].wait()
    assert all(w.is_completed() for w in works)
    for i, t in enumerate(tensors):
        assert torch.equal(t, torch.full((1000,), 2.0 * i))


def test_wait() -> None:
    run_local(_waits, 2)


def test_wait_that_expires_closes_the_communicator() -> None:
    first, second = Communicator.local(2)
    work = _start(first, torch.ones(3))
    assert not work.is_completed()
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"all_reduce on rank 0 did not complete within 0\.2 s") as caught:
        work.wait(0.2)
    assert 0.19 < time.monotonic() - started < 2
    assert isinstance(caught.value, errors.GcommError)
    with pytest.raises(errors.TimeoutError):
        work.wait()
    with pytest.raises((errors.AbortedError, errors.ClosedError)):
        first.all_reduce(torch.ones(3))
    with pytest.raises(errors.AbortedError, match=r"rank 0 gave up waiting for all_reduce after 0\.2 s"):
        second.all_reduce(torch.ones(3))
    first.close()
    second.close()


def test_deadline_of_a_call() -> None:
    first, second = Communicator.local(2)
    started = time.monotonic()
    with pytest.raises(errors.TimeoutError):
        first.all_reduce(torch.ones(3), timeout=datetime.timedelta(seconds=0.3))
    assert 0.25 < time.monotonic() - started < 3
    first.close()
    second.close()


def test_timeouts_of_wait_are_checked() -> None:
    (comm,) = Communicator.local(1)
    work = _start(comm, torch.ones(1))
    for wrong, kind in ((0, ValueError), (-1.0, ValueError), ("1", TypeError)):
        with pytest.raises(kind, match="wait: argument 'timeout' on rank 0"):
            work.wait(wrong)  # type: ignore[arg-type]
    work.wait()
    comm.close()


def _futures(comm: Communicator) -> None:
    x = torch.ones(3)
    future = _start(comm, x).get_future()
    assert isinstance(future, torch.futures.Future)
    assert future.then(lambda f: f.value() + 1).wait().tolist() == [3.0] * 3
    assert future.value() is x
    y = np.ones(3, np.float32)
    other = _start(comm, y).get_future()
    assert isinstance(other, concurrent.futures.Future)
    assert other.result(10) is y
    out = torch.empty(3)
    assert _start(comm, torch.ones(3), out=out).get_future().wait() is out
    tensors = [torch.ones(2), torch.ones(3)]
    work = comm.all_reduce_coalesced(tensors, async_op=True)
    assert work is not None
    assert work.get_future().wait() == tensors
    assert work.get_future() is work.get_future()
    # A result that is copied back is there when the future is done.
    memory = torch.ones(6)
    _start(comm, memory[::2]).get_future().wait()
    assert memory.tolist() == [2.0, 1.0] * 3
    done = comm.barrier(async_op=True)
    assert done is not None
    done.get_future().result(10)


def test_futures() -> None:
    run_local(_futures, 2)


def test_future_of_a_failed_call() -> None:
    first, second = Communicator.local(2)
    future = _start(first, torch.ones(3)).get_future()
    other = _start(first, np.ones(3, np.float32)).get_future()
    second.abort("enough")
    with pytest.raises(errors.AbortedError, match="enough"):
        other.result(10)
    with pytest.raises(Exception, match="enough"):
        future.wait()
    first.close()
    second.close()


def _chained(comm: Communicator) -> list[float]:
    """Callbacks that themselves wait for collectives and their futures."""

    def inner(future: Any) -> Any:
        time.sleep(0.01)
        y = future.value().clone()
        nested = _start(comm, y).get_future()
        comm.barrier()
        return nested.wait()

    # One at a time, so that the nested calls come in the same order on both ranks.
    results = []
    for _ in range(3):
        results.append(_start(comm, torch.ones(2)).get_future().then(inner).wait()[0].item())
    return results


def test_a_callback_may_wait_for_another_future() -> None:
    assert run_local(_chained, 2, timeout=30) == [[4.0] * 3] * 2


def _blocked_callbacks(comm: Communicator) -> None:
    gate = torch.futures.Future[None]()
    waiting = [_start(comm, torch.ones(2)).get_future().then(lambda _: gate.wait()) for _ in range(8)]
    last = _start(comm, torch.ones(2)).get_future().then(lambda _: gate.set_result(None))
    last.wait()
    for future in waiting:
        future.wait()


def test_many_callbacks_that_wait_for_a_later_one() -> None:
    run_local(_blocked_callbacks, 1, timeout=30)


def test_arrays_live_until_the_call_completes() -> None:
    first, second = Communicator.local(2)
    memory = np.ones(3, np.float32)
    gone = weakref.ref(memory)
    work = _start(first, memory)
    del memory, work
    gc.collect()
    assert gone() is not None
    other = np.ones(3, np.float32)
    second.all_reduce(other, codec=None)
    assert other.tolist() == [2.0] * 3
    # The next call releases what has finished.
    deadline = time.monotonic() + 10
    while gone() is not None and time.monotonic() < deadline:
        works = [_start(comm, np.ones(1, np.float32)) for comm in (first, second)]
        for work in works:
            work.wait()
    assert gone() is None
    first.close()
    second.close()


def test_a_communicator_lives_until_its_calls_complete() -> None:
    first, second = Communicator.local(2)
    x, y = torch.ones(3), torch.ones(3)
    work = _start(first, x)
    del first
    gc.collect()
    second.all_reduce(y, codec=None)
    work.wait()
    assert x.tolist() == y.tolist() == [2.0] * 3
    second.close()


def test_is_completed_copies_back() -> None:
    (comm,) = Communicator.local(1)
    memory = torch.arange(8.0)
    work = _start(comm, memory[::2], op="sum")
    deadline = time.monotonic() + 10
    while not work.is_completed() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert memory.tolist() == list(range(8))
    comm.close()


def test_one_work_waited_for_by_many_threads() -> None:
    first, second = Communicator.local(2)
    x = torch.ones(6)
    work = _start(first, x[::2])
    seen: list[list[float]] = []

    def body() -> None:
        work.wait()
        seen.append(x.tolist())

    threads = [threading.Thread(target=body) for _ in range(8)]
    for thread in threads:
        thread.start()
    second.all_reduce(torch.ones(3), codec=None)
    for thread in threads:
        thread.join(10)
    assert seen == [[2.0, 1.0] * 3] * 8
    first.close()
    second.close()


# ---- copying back -------------------------------------------------------------------------------------------


def _cannot_be_copied_back(make: Any, spoil: Any) -> tuple[Any, Work]:
    first, second = Communicator.local(2)
    view = make()
    work = _start(first, view)
    spoil(view)
    future = work.get_future()
    second.all_reduce(make(), codec=None)
    return future, work


def _resize(view: torch.Tensor) -> None:
    with torch.no_grad():
        view.resize_(3, 3)


SPOILT: list[tuple[Any, Any]] = [
    (lambda: np.ones((40, 4), np.float32)[:, ::2], lambda view: view.setflags(write=False)),
    (lambda: torch.ones(40, 4)[:, ::2], _resize),
]


@pytest.mark.parametrize(("make", "spoil"), SPOILT, ids=["numpy", "torch"])
def test_a_copy_back_that_fails_is_told_each_time(make: Any, spoil: Any) -> None:
    future, work = _cannot_be_copied_back(make, spoil)
    wait = future.wait if isinstance(future, torch.futures.Future) else lambda: future.result(10)
    with pytest.raises(Exception, match=r"all_reduce on rank 0: .*could not be copied back"):
        wait()
    for _ in range(2):
        with pytest.raises(errors.GcommError, match="could not be copied back"):
            work.wait()
        assert work.is_completed()


def test_a_future_cannot_be_cancelled() -> None:
    first, second = Communicator.local(2)
    x = np.ones(3, np.float32)
    future = _start(first, x).get_future()
    assert isinstance(future, concurrent.futures.Future)
    assert not future.cancel()
    second.all_reduce(np.ones(3, np.float32), codec=None)
    assert future.result(10) is x


def test_the_kind_of_future_is_that_of_the_arrays() -> None:
    first, second = Communicator.local(2)
    for array, kind in ((np.ones(3), concurrent.futures.Future), (torch.ones(3), torch.futures.Future)):
        work = first.send(array, 1, async_op=True)
        assert work is not None
        assert isinstance(work.get_future(), kind)
        second.recv(array.copy() if kind is concurrent.futures.Future else array.clone(), 0)
        work.wait()
    work = first.barrier(async_op=True)
    assert work is not None
    assert isinstance(work.get_future(), concurrent.futures.Future)
    second.barrier()


def test_statistics_of_a_pending_call() -> None:
    first, second = Communicator.local(2)
    work = _start(first, torch.ones(3))
    with pytest.raises(errors.InvalidArgumentError, match="all_reduce on rank 0: the call has not completed"):
        _ = work.stats
    second.all_reduce(torch.ones(3), codec=None)
    work.wait()
    assert work.stats["path"] == "raw"
