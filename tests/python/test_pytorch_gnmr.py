"""DistributedDataParallel under a stability controller."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from ddp_models import wrapped
from ranks import RankPools
from torch import nn

from gcomm.errors import InvalidArgumentError, UnsupportedError
from gcomm.gnmr import Controller
from gcomm.pytorch import DDPState
from gcomm.pytorch._control import Turn

_NAMES = ("0.weight", "1.weight", "2.weight")


def _run(rank: int, _size: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(96, 96, bias=False) for _ in range(3)))
    control = Controller(tau=3.0, tau_delta=2.0, window=8, warmup=3, max_ops=1, lock=2)
    state = DDPState("nvfp4", model, controller=control, error_every=0)
    # Several buckets, so that they share a step.
    ddp = wrapped(model, state, bucket_cap_mb=0.03)
    generator = torch.Generator().manual_seed(rank)
    history = []
    for step in range(9):
        x = torch.randn(16, 96, generator=generator)
        # Only rank 1's own gradient leaps, then has a NaN.
        weight = float("nan") if (rank, step) == (1, 6) else 1000.0 if (rank, step) == (1, 4) else 1.0
        ddp.zero_grad()
        (ddp(x).square().mean() * weight).backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        history.append(
            ([g.numpy().tobytes() for g in gradients], [float(g.double().norm()) for g in gradients])
        )
    rows = state.stats["parameters"]
    return history, control.report(), repr(control.state_dict()), {name: rows[name]["calls"] for name in _NAMES}


def test_parameters_are_clipped_skipped_and_recovered_alike(rank_pool: RankPools) -> None:
    (history, report, state, calls), (other, *rest) = rank_pool(2).run(_run)
    assert [step[0] for step in history] == [step[0] for step in other]
    assert rest[:2] == [report, state]
    # The leap is in all three parameters; the budget has room for one, of the largest rho of the first bucket.
    assert (report["step"], report["clips"], report["recoveries"]) == (8, 1, 1)
    assert report["refusals"] >= 2
    assert report["skips"] == 3
    ((unit, _),) = [item for item in report["by_unit"].items() if item[1]["clips"]]
    clipped = _NAMES.index(unit)
    for place in range(3):
        before, leap = history[3][1][place], history[4][1][place]
        assert (leap < 10 * before) == (place == clipped)
        assert history[6][1][place] == 0
    # Two steps in a higher format, in calls of its own.
    assert calls[unit] >= 9


def test_a_turn_that_ends_early_does_not_let_the_next_one_pass() -> None:
    lock = threading.Lock()
    first = Turn(0, None, lock)
    second = Turn(0, first, lock)
    third = Turn(0, second, lock)
    second.end()  # an empty bucket, say
    assert not third._comes.is_set()
    first.wait()
    first.end()
    third.wait()
    third.end()
    last = Turn(1, third, lock)
    last.wait()


def _double(_rank: int, _size: int) -> str:
    model = nn.Linear(64, 64).double()
    control = Controller(tau=3.0, tau_delta=2.0, window=8, warmup=3, max_ops=1, lock=2)
    ddp = wrapped(model, DDPState("nvfp4", model, controller=control))
    with pytest.raises(UnsupportedError) as caught:
        ddp(torch.ones(2, 64, dtype=torch.float64)).sum().backward()
    return str(caught.value)


def test_gradients_that_it_cannot_watch(rank_pool: RankPools) -> None:
    for text in rank_pool(2).run(_double):
        assert "a controller watches float32, bfloat16 and float16 gradients, not torch.float64" in text


def test_a_controller_of_two_states() -> None:
    control = Controller(tau=3.0, tau_delta=2.0, window=8, warmup=3, max_ops=1, lock=2)
    first = DDPState("nvfp4", controller=control)
    with pytest.raises(InvalidArgumentError, match="another DDPState has it"):
        DDPState("nvfp4", controller=control)
    del first
    DDPState("nvfp4", controller=control)
