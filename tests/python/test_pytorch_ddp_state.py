"""State of the DistributedDataParallel hook: saved, killed, resumed; and which state is refused."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_models import Mixed, bits, train, wrapped
from ranks import RankPools, run_ranks, start_ranks

import gcomm
from gcomm.pytorch import DDPState

_CODEC = "gift+int4:refresh=2:min_bytes=0:rounding=stochastic"


def _start(rank: int, cap: float) -> tuple[Any, DDPState, Mixed]:
    torch.manual_seed(0)
    model = Mixed(width=32)
    state = DDPState(_CODEC, model, error_feedback=True, warmup_steps=2)
    return wrapped(model, state, find_unused_parameters=True, bucket_cap_mb=cap), state, model


def _whole_run(rank: int, _size: int) -> list[bytes]:
    ddp, _, model = _start(rank, 0.02)
    train(ddp, rank, range(9))
    return bits(model)


def _until_killed(rank: int, _size: int, folder: str) -> None:
    ddp, state, model = _start(rank, 0.02)
    train(ddp, rank, range(5))
    saved = {"ddp": state.state_dict(), "model": model.state_dict()}
    torch.save(saved, Path(folder) / f"{rank}.pt")
    train(ddp, rank, range(5, 7))  # lost
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def _resumed(rank: int, _size: int, folder: str) -> list[bytes]:
    ddp, state, model = _start(rank, 0.005)  # other buckets than before
    saved = torch.load(Path(folder) / f"{rank}.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    state.load_state_dict(saved["ddp"])
    assert state.step == 5
    train(ddp, rank, range(5, 9))
    return bits(model)


def test_killed_and_resumed_run_has_the_same_bits(tmp_path: Path, rank_pool: RankPools) -> None:
    """Residuals, bases and counters of all parameters come back, whatever buckets they travel in."""
    whole = rank_pool(2).run(_whole_run)
    with start_ranks(_until_killed, 2, str(tmp_path)) as ranks:
        assert [outcome.exitcode for outcome in ranks.join()] == [-signal.SIGKILL] * 2
    resumed = run_ranks(_resumed, 2, str(tmp_path))
    assert resumed == whole
    assert whole[0] == whole[1]


def _in_subgroup(rank: int, _size: int) -> list[list[bytes]]:
    groups = [dist.new_group([0, 2]), dist.new_group([1])]
    out = []
    for resume in (False, True):
        torch.manual_seed(0)
        model = Mixed(width=32)
        state = DDPState(_CODEC, model, error_feedback=True)
        options = {"find_unused_parameters": True, "process_group": groups[rank % 2]}
        ddp = wrapped(model, state, **options)
        train(ddp, rank, range(2))
        if resume:
            saved = pickle.loads(pickle.dumps((state.state_dict(), model.state_dict())))
            model = Mixed(width=32)
            model.load_state_dict(saved[1])
            state = DDPState(_CODEC, group=groups[rank % 2], error_feedback=True)
            state.load_state_dict(saved[0])
            ddp = wrapped(model, state, **{**options, "bucket_cap_mb": 1})
        train(ddp, rank, range(2, 4))
        out.append(bits(model))
    return out


def test_resumed_in_a_subgroup(rank_pool: RankPools) -> None:
    """Ranks 0 and 2 of three, whose ranks in the group are not those in the job; rank 1 has its own group."""
    results = rank_pool(3).run(_in_subgroup)
    for whole, resumed in results:
        assert resumed == whole
    assert results[0][0] == results[2][0] != results[1][0]


def _refused(rank: int, size: int) -> list[str]:
    state = DDPState("int4:ef=1", group=gcomm.Communicator.local(1)[0])
    good = state.state_dict()
    there = DDPState("int4:ef=1")
    bad: list[tuple[DDPState, Any]] = [
        (there, good),
        (there, {**there.state_dict(), "rank": 1 - rank}),
        (there, {**there.state_dict(), "step": -1}),
        (there, {**there.state_dict(), "codecs": {"int4:ef=1": b"no"}}),
        (there, {**there.state_dict(), "codecs": {}}),
        (there, DDPState("nvfp4").state_dict()),
        (there, {**there.state_dict(), "version": 7}),
        (there, None),
    ]
    texts = []
    for each, saved in bad:
        with pytest.raises(gcomm.errors.CodecError) as raised:
            each.load_state_dict(saved)
        texts.append(str(raised.value))
    return texts


def test_other_states_are_refused(rank_pool: RankPools) -> None:
    wanted = [
        "rank 0 of 1, and this is rank 1 of 2; every rank loads its own",
        "rank 0 of 2, and this is rank 1 of 2",
        "number of steps, got -1",
        "state",
        "nothing of codec 'int4:ef=1'",
        "holds codec 'nvfp4'",
        "version 1, got 7",
        "expected a dict",
    ]
    for text, part in zip(rank_pool(2).run(_refused)[1], wanted, strict=True):
        assert part in text
