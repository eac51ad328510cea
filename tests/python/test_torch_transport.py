"""transport="torch": one rank's failure reaches them all, in time, and says whose it is."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from programs import run_script
from ranks import RankPools, start_ranks

from gcomm import Communicator, errors


def _third_rank_hears_of_it(rank: int, size: int) -> Any:
    """Rank 2 waits for rank 0, which is busy, when rank 1 aborts."""
    comm = Communicator.from_torch(transport="torch")
    x = torch.ones(300_000)
    comm.all_reduce(x)
    comm.barrier()
    if rank == 1:
        time.sleep(0.3)
        comm.abort("enough")
    started = time.monotonic()
    if rank == 0:
        time.sleep(2)
    with pytest.raises((errors.AbortedError, errors.ClosedError)) as caught:
        comm.all_reduce(x, timeout=20)
    comm.close()
    return time.monotonic() - started, caught.value.rank, str(caught.value)


def test_abort_reaches_a_rank_that_waits_for_another(rank_pool: RankPools) -> None:
    results = rank_pool(3).run(_third_rank_hears_of_it)
    assert results[2][0] < 1.8, results
    for _, culprit, text in results:
        assert culprit == 1
        assert "rank 1 aborted the communicator" in text


def _late_one_after_the_other(rank: int, size: int) -> float:
    """Rank 1 comes late but in time, rank 2 never: rank 0's time does not begin anew after rank 1."""
    comm = Communicator.from_torch(transport="torch")
    comm.barrier()
    started = time.monotonic()
    x = torch.ones(3000)
    if rank == 1:
        time.sleep(0.8)
    if rank == 2:
        time.sleep(2.2)
    with pytest.raises((errors.TimeoutError, errors.AbortedError, errors.PeerLostError)) as caught:
        comm.all_reduce(x, timeout=1.2)
    if rank == 0:
        assert caught.value.rank == 2, caught.value
    seconds = time.monotonic() - started
    comm.close()
    return seconds


def test_a_deadline_is_for_all_peers_together(rank_pool: RankPools) -> None:
    seconds = rank_pool(3).run(_late_one_after_the_other)
    assert 1.19 < seconds[0] < 1.7, seconds


def _posts_to_the_dead(rank: int, size: int) -> Any:
    comm = Communicator.from_torch(transport="torch")
    comm.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    with pytest.raises(errors.PeerLostError) as caught:
        comm.all_reduce(torch.ones(10), timeout=10)
    return caught.value.rank, str(caught.value)


def test_a_failure_in_posting_names_the_rank() -> None:
    with start_ranks(_posts_to_the_dead, 3) as ranks:
        outcomes = ranks.join(30, only=[0, 2])
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[rank].error
        assert outcomes[rank].value[0] == 1, outcomes[rank].value
        assert "rank 1" in outcomes[rank].value[1]


def test_losing_the_rank_with_the_store_prints_nothing() -> None:
    """A call of a lost store makes torch print a C++ stack on stderr."""
    script = (
        "import os, signal, time, torch, torch.distributed as dist, gcomm\n"
        "dist.init_process_group('gloo')\n"
        "comm = gcomm.Communicator.from_torch(transport='torch')\n"
        "comm.barrier()\n"
        "if comm.rank == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "try: comm.all_reduce(torch.ones(10), timeout=10)\n"
        "except gcomm.errors.PeerLostError as error: print(error.rank, flush=True)\n"
        "os._exit(0)\n"
    )
    results = run_script(script, 3)
    assert [result.stdout for result in results] == ["", "0\n", "0\n"], results
    assert all("c10" not in result.stderr for result in results), results


def _without_a_store(rank: int, size: int, transport: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gcomm._rendezvous.group_store", lambda group: None)
        patch.setattr("gcomm._torch_group.group_store", lambda group: None)
        with Communicator.from_torch(transport=transport) as comm:
            comm.barrier()
            return comm.transport


def test_a_torch_that_does_not_tell_its_store(rank_pool: RankPools) -> None:
    assert rank_pool(2).run(_without_a_store, "tcp") == ["tcp", "tcp"]


def _not_all_come(rank: int, size: int) -> Any:
    if rank == 1:
        time.sleep(0.8)
    started = time.monotonic()
    with pytest.raises((errors.TimeoutError, errors.AbortedError)) as caught:
        Communicator.from_torch(timeout=0.4)
    seconds = time.monotonic() - started
    dist.barrier()
    with Communicator.from_torch(timeout=20) as comm:  # the next attempt is a new one
        comm.barrier()
    return seconds, type(caught.value).__name__, caught.value.rank, str(caught.value)


def test_from_torch_that_some_rank_does_not_call(rank_pool: RankPools) -> None:
    first, second = rank_pool(2).run(_not_all_come)
    assert 0.39 < first[0] < 0.8, first
    assert first[1:3] == ("TimeoutError", 1)
    assert "from_torch on rank 0: within 0.4 s rank 1 did not come" in first[3]
    assert second[0] < 0.4, second
    assert second[1:3] == ("AbortedError", 0)
    assert "rank 0 gave up" in second[3]
