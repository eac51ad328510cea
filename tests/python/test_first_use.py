"""A torch group's communicator, made by the first call: its time, Ctrl-C, and what follows its end."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import RankPools, run_ranks

import gcomm
from gcomm import Communicator, errors


def _first_use(rank: int, size: int) -> Any:
    group = dist.new_group([0, 1])
    if rank == 1:
        time.sleep(1.0)
        x = torch.ones(3)
        with pytest.raises(errors.AbortedError, match="rank 0 gave up"):
            gcomm.all_reduce(x, "sum", group)
    else:
        started = time.monotonic()
        with pytest.raises(
            errors.TimeoutError, match=r"all_reduce on rank 0: within 0\.5 s rank 1 did not come"
        ):
            gcomm.all_reduce(torch.ones(3), "sum", group, timeout=0.5)
        assert 0.49 < time.monotonic() - started < 0.9
    dist.barrier()
    # Both try again.
    x = torch.ones(3)
    gcomm.all_reduce(x, "sum", group, timeout=20)
    assert x.tolist() == [2.0] * 3
    dist.destroy_process_group(group)


def test_the_first_call_has_its_time(rank_pool: RankPools) -> None:
    rank_pool(2).run(_first_use)


def _time_is_shared(rank: int, size: int) -> float:
    """What making the communicator took is no longer there for the call."""
    group = dist.new_group([0, 1])
    started = time.monotonic()
    if rank == 0:
        with pytest.raises(errors.TimeoutError):
            gcomm.all_reduce(torch.ones(3), "sum", group, timeout=1.5)
    else:
        time.sleep(1.0)
        gcomm._torch_group.resolve(group, "barrier", None)
        time.sleep(1.0)
    seconds = time.monotonic() - started
    dist.destroy_process_group(group)
    return seconds


def test_the_first_call_has_no_more_than_its_time(rank_pool: RankPools) -> None:
    seconds = rank_pool(2).run(_time_is_shared)
    assert 1.45 < seconds[0] < 1.9, seconds


def _interrupted(rank: int, size: int) -> float:
    seconds = 0.0
    if rank == 0:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            gcomm.all_reduce(torch.ones(3))
        seconds = time.monotonic() - started - 0.3
        dist.barrier()
    else:
        dist.barrier()
        with pytest.raises(errors.AbortedError, match=r"rank 0 gave up .*KeyboardInterrupt"):
            gcomm.all_reduce(torch.ones(3))
    gcomm.all_reduce(torch.ones(3))
    return seconds


def test_ctrl_c_interrupts_the_first_call() -> None:
    seconds, _ = run_ranks(_interrupted, 2)
    assert seconds < 0.4


def _way_out(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    if rank == 0:
        with pytest.raises(errors.TimeoutError):
            _late(group)
    else:
        gcomm.barrier(group)
        time.sleep(0.6)
    with pytest.raises(errors.GcommError):
        gcomm.all_reduce(torch.ones(3), "sum", group)
    for codec in ("fp8_e4m3", "int2", None):
        with pytest.raises(errors.ClosedError, match=r"go on with another group, or with .*from_torch"):
            gcomm.all_reduce(torch.ones(3), "sum", group, codec=codec)
    with Communicator.from_torch(group) as comm:
        x = torch.ones(3)
        gcomm.all_reduce(x, "sum", comm)
        assert x.tolist() == [2.0] * 3
    dist.destroy_process_group(group)


def _late(group: Any) -> None:
    gcomm.barrier(group)
    gcomm.all_reduce(torch.ones(3), "sum", group, timeout=0.3)


def test_the_way_out_of_a_closed_group(rank_pool: RankPools) -> None:
    rank_pool(2).run(_way_out)
