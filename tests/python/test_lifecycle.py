"""Interpreters that end, fork or are interrupted; threads; programs without torch."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
from programs import run_script
from ranks import RankPools, run_env, run_local, run_ranks, start_ranks

import gcomm
from gcomm import Communicator, errors

GROUP = "import torch, torch.distributed as dist, gcomm\ndist.init_process_group('gloo')\n"

ENDINGS = {
    "without close": "gcomm.all_reduce(x)\n",
    "explicit communicator": "comm = gcomm.Communicator.from_torch()\ncomm.all_reduce(x)\n",
    "torch transport": "comm = gcomm.Communicator.from_torch(transport='torch')\ncomm.all_reduce(x)\n",
    "group destroyed": "gcomm.all_reduce(x)\ndist.destroy_process_group()\n",
    "work not waited for": "work = gcomm.all_reduce(x, async_op=True)\n",
    "work dropped": "gcomm.all_reduce(x, async_op=True)\n",
    "future not waited for": "f = gcomm.all_reduce(x, async_op=True).get_future().then(lambda f: f.value())\n",
    "sys.exit": "import sys\ngcomm.all_reduce(x)\nsys.exit(0)\n",
}


@pytest.mark.parametrize("body", list(ENDINGS.values()), ids=list(ENDINGS))
def test_interpreter_ends(body: str) -> None:
    started = time.monotonic()
    results = run_script(GROUP + "x = torch.ones(100000)\n" + body, 2)
    for result in results:
        assert result.returncode == 0, result.stderr
        assert "Traceback" not in result.stderr
        assert "terminate called" not in result.stderr
        assert "leak" not in result.stderr
    assert time.monotonic() - started < 30


def test_interpreter_ends_with_calls_that_nobody_answers() -> None:
    """Rank 0 has queued what rank 1 never calls: it ends all the same, after a grace."""
    script = GROUP + (
        "x = torch.ones(1000)\n"
        "gcomm.all_reduce(x)\n"
        "if dist.get_rank() == 0:\n"
        "    work = gcomm.all_reduce(x, async_op=True)\n"
        "else:\n"
        "    import time; time.sleep(15)\n"
    )
    started = time.monotonic()
    results = run_script(script, 2)
    assert [result.returncode for result in results] == [0, 0], results
    assert time.monotonic() - started < 40


def test_an_exception_on_one_rank_ends_the_other() -> None:
    script = GROUP + (
        "with gcomm.Communicator.from_torch() as comm:\n"
        "    comm.barrier()\n"
        "    if comm.rank == 0:\n"
        "        raise ValueError('only here')\n"
        "    comm.all_reduce(torch.ones(1000))\n"
    )
    first, second = run_script(script, 2)
    assert first.returncode == second.returncode == 1
    assert "ValueError: only here" in first.stderr
    assert "AbortedError" in second.stderr
    assert "rank 0 left with ValueError: only here" in second.stderr


def test_without_torch() -> None:
    script = (
        "import sys, numpy as np, gcomm\n"
        "assert 'torch' not in sys.modules\n"
        "with gcomm.Communicator.from_env() as comm:\n"
        "    x = np.full(5000, comm.rank + 1, np.float32)\n"
        "    comm.all_reduce(x)\n"
        "    assert abs(x - 3).max() < 0.01, x\n"
        "    f = comm.all_reduce(x, async_op=True).get_future()\n"
        "    assert f.result() is x\n"
        "    print(comm.rank, comm.size, comm.transport)\n"
        "assert 'torch' not in sys.modules\n"
    )
    results = run_script(script, 2, preload=False)
    assert [(result.returncode, result.stdout) for result in results] == [(0, "0 2 tcp\n"), (0, "1 2 tcp\n")], (
        results
    )


def _from_env(rank: int, size: int) -> float:
    with Communicator.from_env() as comm:
        assert (comm.rank, comm.size) == (rank, size)
        x = torch.ones(3)
        comm.all_reduce(x)
        return x[0].item()


def test_from_env() -> None:
    assert run_env(_from_env, 3) == [3.0] * 3


# ---- fork ---------------------------------------------------------------------------------------------------


class _Data(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        # In a worker, which has inherited the communicator.
        return torch.full((2,), float(index))


def _data_loader_workers(rank: int, size: int) -> None:
    gcomm.all_reduce(torch.ones(100_000))
    loader = torch.utils.data.DataLoader(_Data(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        gcomm.all_reduce(batch, "avg", codec=None)
        assert batch.shape == (2, 2)
        big = torch.ones(100_000)
        gcomm.all_reduce(big, "avg", codec="int8")
        assert (big - 1).abs().max() < 0.01


def test_data_loader_workers() -> None:
    run_ranks(_data_loader_workers, 2)


def _in_child(body: Any) -> int:
    """Exit code of a forked child that runs the body and leaves by the ordinary way."""
    child = os.fork()
    if child == 0:
        try:
            body()
        except SystemExit as end:
            import atexit

            atexit._run_exitfuncs()
            os._exit(int(end.code or 0))
        except BaseException:
            os._exit(99)
        os._exit(98)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def _forked(rank: int, size: int, transport: str) -> None:
    comm = Communicator.from_torch(transport=transport)
    comm.all_reduce(torch.ones(3))
    work = comm.all_reduce(torch.ones(100_000), async_op=True)
    assert work is not None

    def child() -> None:
        for use in (
            lambda: comm.all_reduce(torch.ones(3)),
            comm.barrier,
            lambda: comm.stats,
            comm.abort,
            work.wait,
            work.is_completed,
        ):
            with pytest.raises(errors.ClosedError, match="a forked child can't use it"):
                use()
        comm.close()  # which does nothing
        # The child may have communicators of its own, and futures.
        (own,) = Communicator.local(1)
        x = torch.ones(3)
        inner = own.all_reduce(x, async_op=True)
        assert inner is not None
        inner.get_future().wait()
        assert comm.rank == rank
        raise SystemExit(7)

    assert _in_child(child) == 7
    work.wait()
    x = torch.ones(3)
    comm.all_reduce(x)
    assert x.tolist() == [float(size)] * 3
    comm.close()


@pytest.mark.parametrize("transport", ["tcp", "torch"])
def test_forked_child(transport: str) -> None:
    run_ranks(_forked, 2, transport)


# ---- Ctrl-C -------------------------------------------------------------------------------------------------


def _interrupted(rank: int, size: int, transport: str) -> float:
    comm = Communicator.from_torch(transport=transport)
    x = torch.ones(3)
    took = 0.0
    if rank == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            comm.all_reduce(x)
        took = time.monotonic() - started - 0.5
    else:
        time.sleep(1.5)
        comm.all_reduce(x)
        assert x.tolist() == [2.0] * 3
    # The interrupted call went on, and so does the communicator.
    y = torch.ones(3)
    comm.all_reduce(y)
    assert y.tolist() == [2.0] * 3
    assert x.tolist() == [2.0] * 3
    comm.close()
    return took


@pytest.mark.parametrize("transport", ["tcp", "torch"])
def test_ctrl_c_interrupts_a_wait(transport: str) -> None:
    took, _ = run_ranks(_interrupted, 2, transport)
    assert took < 0.4


def _interrupted_while_connecting(rank: int, size: int) -> float:
    if rank == 1:
        time.sleep(2)
        return 0.0
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Communicator.from_env()
    return time.monotonic() - started - 0.5


def test_ctrl_c_interrupts_connecting() -> None:
    with start_ranks(_interrupted_while_connecting, 2, backend=None) as ranks:
        outcomes = ranks.join(30, only=[0])
    assert outcomes[0].ok, outcomes[0].error
    assert outcomes[0].value < 0.4


# ---- threads ------------------------------------------------------------------------------------------------


def _many_threads(comm: Communicator) -> None:
    """Barriers and sums of equal arguments commute: any order in which threads get to call is right."""
    errors_seen: list[BaseException] = []

    def body() -> None:
        try:
            for _ in range(25):
                x = torch.ones(5000)
                comm.all_reduce(x, codec="int8")
                assert (x - comm.size).abs().max() < 0.1
        except BaseException as error:
            errors_seen.append(error)

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors_seen, errors_seen


def test_threads_that_call_at_once() -> None:
    run_local(_many_threads, 2)


def _point_to_point_from_threads(comm: Communicator) -> None:
    """Receives that wait for their sender don't hold up other threads' calls."""
    n, rank = comm.size, comm.rank
    received = {}

    def receive(peer: int) -> None:
        x = torch.empty(1000)
        comm.recv(x, peer)
        received[peer] = x[0].item()

    threads = [threading.Thread(target=receive, args=(peer,)) for peer in range(n) if peer != rank]
    for thread in threads:
        thread.start()
    x = torch.ones(1000)
    comm.all_reduce(x, codec=None)
    for peer in range(n):
        if peer != rank:
            comm.send(torch.full((1000,), float(rank)), peer)
    for thread in threads:
        thread.join(30)
    assert received == {peer: float(peer) for peer in range(n) if peer != rank}


def _on_torch(rank: int, size: int, transport: str) -> None:
    with Communicator.from_torch(transport=transport) as comm:
        _point_to_point_from_threads(comm)


@pytest.mark.parametrize("transport", ["tcp", "torch"])
def test_point_to_point_from_threads(transport: str, rank_pool: RankPools) -> None:
    rank_pool(3).run(_on_torch, transport)


def _first_use_from_threads(rank: int, size: int) -> int:
    from gcomm._torch_group import _communicators

    before = len(_communicators)
    group = torch.distributed.new_group(list(range(size)))

    def body() -> None:
        gcomm.all_reduce(torch.ones(10), "sum", group)

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    made = len(_communicators) - before
    torch.distributed.destroy_process_group(group)
    return made


def test_first_use_from_threads(rank_pool: RankPools) -> None:
    assert rank_pool(2).run(_first_use_from_threads) == [1, 1]


def _first_uses_in_another_order(rank: int, size: int) -> None:
    groups = [torch.distributed.new_group(list(range(size))) for _ in range(2)]

    def body(i: int) -> None:
        time.sleep(0.2 * (i == rank))
        gcomm.all_reduce(torch.ones(10), "sum", groups[i])

    threads = [threading.Thread(target=body, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for group in groups:
        torch.distributed.destroy_process_group(group)


def test_threads_that_use_groups_first_in_another_order(rank_pool: RankPools) -> None:
    rank_pool(2).run(_first_uses_in_another_order)


def test_closing() -> None:
    first, second = Communicator.local(2)
    first.close()
    first.close()
    second.close()
    for comm in (first, second):
        with pytest.raises(errors.ClosedError):
            comm.all_reduce(torch.ones(3))
        with pytest.raises(errors.ClosedError):
            comm.all_reduce(torch.ones(100_000))
    with Communicator.local(1)[0] as alone:
        alone.barrier()
    with pytest.raises(errors.ClosedError):
        alone.barrier()
