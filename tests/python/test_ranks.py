"""The rank helpers themselves: a failing rank must never look like a passing test."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from programs import run_script
from ranks import RankError, RankPools, run_env, run_ranks, start_ranks


def _sum_over_gloo(rank: int, size: int, start: int) -> float:
    t = torch.tensor([float(start + rank)])
    dist.all_reduce(t)
    return t.item() + size


def _fail_on_one(rank: int, _size: int) -> int:
    if rank == 1:
        raise ValueError("only here")
    return rank


def _environment(_rank: int, _size: int) -> tuple[str, str, bool]:
    return os.environ["RANK"], os.environ["WORLD_SIZE"], dist.is_initialized()


def _sleep(_rank: int, _size: int) -> None:
    time.sleep(60)


def test_pool_runs_on_every_rank_and_is_kept(rank_pool: RankPools) -> None:
    pids = rank_pool(2).pids
    assert rank_pool(2).run(_sum_over_gloo, 1) == [5.0, 5.0]
    assert rank_pool(2).run(_sum_over_gloo, 2) == [7.0, 7.0]
    assert rank_pool(2).pids == pids


def test_failure_names_the_rank_and_keeps_the_exception() -> None:
    with pytest.raises(RankError, match="rank 1 raised") as failure:
        run_ranks(_fail_on_one, 2)
    assert failure.value.outcomes[0].ok
    assert isinstance(failure.value.outcomes[1].exception, ValueError)


def test_killed_and_late_ranks_are_reported() -> None:
    with start_ranks(_sleep, 2, backend=None) as ranks:
        ranks.kill(0, signal.SIGKILL)
        outcomes = ranks.join(timeout=1.0)
    assert [outcome.finished for outcome in outcomes] == [False, False]
    assert outcomes[0].exitcode == -signal.SIGKILL


def test_env_ranks_have_no_group() -> None:
    assert run_env(_environment, 2) == [("0", "2", False), ("1", "2", False)]


def test_script_ranks() -> None:
    text = (
        "import atexit, os, sys\n"
        "rank = int(os.environ['RANK'])\n"
        "atexit.register(print, 'ended', rank)\n"
        "print('torch' in sys.modules, file=sys.stderr)\n"
        "sys.exit(rank)\n"
    )
    for preload in (True, False):
        results = run_script(text, 2, preload=preload)
        assert [result.stdout for result in results] == ["ended 0\n", "ended 1\n"]
        assert [result.stderr for result in results] == [f"{preload}\n"] * 2
        assert [result.returncode for result in results] == [0, 1]
    (late,) = run_script("import time; time.sleep(60)", 1, timeout=0.5)
    assert late.returncode == -signal.SIGKILL
