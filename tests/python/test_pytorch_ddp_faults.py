"""What goes wrong with the DistributedDataParallel hook: errors that say what to do, on every rank."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ddp_models import Mixed, batch, bits, train, wrapped
from ranks import RankPools, start_ranks
from torch import nn

import gcomm
from gcomm.errors import (
    DtypeError,
    GcommError,
    InvalidArgumentError,
    NonFiniteError,
    PeerLostError,
    UnsupportedError,
)
from gcomm.pytorch import DDPState, Rules, ddp_hook

UNUSED = {"find_unused_parameters": True}


def _backward(ddp: nn.Module, rank: int, step: int = 0) -> None:
    x, y = batch(rank, step)
    nn.functional.cross_entropy(ddp(x), y).backward()


# ---- wrong use ----------------------------------------------------------------------------------------------


def _wrong_state(rank: int) -> None:
    ddp = wrapped(Mixed(), None, **UNUSED)
    ddp.register_comm_hook(None, ddp_hook)
    _backward(ddp, rank)


def _registered_twice(rank: int) -> None:
    model = Mixed()
    ddp = wrapped(model, DDPState("nvfp4", model), **UNUSED)
    ddp.register_comm_hook(DDPState("nvfp4", model), ddp_hook)


def _shared_state(rank: int) -> None:
    state = DDPState("nvfp4", model := Mixed())
    train(wrapped(model, state, **UNUSED), rank, range(1))
    train(wrapped(Mixed(), state, **UNUSED), rank, range(1))


def _other_model(rank: int) -> None:
    train(wrapped(Mixed(), DDPState("nvfp4", Mixed()), **UNUSED), rank, range(1))


def _no_names(rank: int) -> None:
    ddp = wrapped(Mixed(), DDPState("gift+nvfp4"), **UNUSED)
    gc.collect()
    gc.freeze()  # what is frozen is not found
    try:
        _backward(ddp, rank)
    finally:
        gc.unfreeze()


def _changed(change: Callable[[Mixed], None]) -> Callable[[int], None]:
    def run(rank: int) -> None:
        model = Mixed()
        ddp = wrapped(model, DDPState("nvfp4"), **UNUSED)
        train(ddp, rank, range(2))
        change(model)
        _backward(ddp, rank)

    return run


def _replace(model: Mixed) -> None:
    model.norm.weight = nn.Parameter(torch.ones(144))


def _add(model: Mixed) -> None:
    model.more = nn.Linear(2, 2)


def _freeze(model: Mixed) -> None:
    model.unused.requires_grad_(False)


def _thaw(model: Mixed) -> None:
    model.frozen.requires_grad_(True)


def _thawed_before(rank: int) -> None:
    model = Mixed()
    ddp = wrapped(model, DDPState("nvfp4", model), **UNUSED)
    model.frozen.requires_grad_(True)
    train(ddp, rank, range(2))


def _sparse(rank: int) -> None:
    model = nn.Sequential(nn.Embedding(40, 4, sparse=True), nn.Linear(4, 40))
    _backward(wrapped(model, DDPState("nvfp4", model)), rank)


_WRONG: dict[str, tuple[Callable[[int], None], type[Exception], str]] = {
    "wrong state": (_wrong_state, DtypeError, "register_comm_hook(gcomm.pytorch.DDPState("),
    "registered twice": (_registered_twice, RuntimeError, "can only be called once"),
    "shared state": (_shared_state, InvalidArgumentError, "one DDPState for each"),
    "another model": (_other_model, InvalidArgumentError, "one DDPState for each"),
    "no names": (_no_names, InvalidArgumentError, "give the model"),
    "replaced": (_changed(_replace), InvalidArgumentError, "'norm.weight' was replaced"),
    "added": (_changed(_add), InvalidArgumentError, "wrap the model again"),
    "frozen later": (_changed(_freeze), InvalidArgumentError, "'unused.weight' was True and is False"),
    "thawed later": (_changed(_thaw), InvalidArgumentError, "'frozen.weight' was False and is True"),
    "thawed before": (_thawed_before, InvalidArgumentError, "'frozen.weight' requires a gradient"),
    "sparse": (_sparse, UnsupportedError, "sparse=False"),
}


def _wrong_uses(rank: int, _size: int) -> dict[str, tuple[str, str]]:
    said = {}
    for name, (run, _, _) in _WRONG.items():
        torch.manual_seed(0)
        try:
            run(rank)
            said[name] = ("nothing", "")
        except Exception as error:
            said[name] = (type(error).__name__, str(error))
    return said


def test_wrong_uses_are_refused_in_words(rank_pool: RankPools) -> None:
    for said in rank_pool(2).run(_wrong_uses):
        for name, (_, kind, text) in _WRONG.items():
            assert said[name][0] == kind.__name__, (name, said[name])
            assert text in said[name][1], (name, said[name])


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: DDPState("int5"), gcomm.errors.CodecError, "int5"),
        (lambda: DDPState(3), DtypeError, "codec"),  # type: ignore[arg-type]
        (lambda: DDPState("int4", "model"), DtypeError, "torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: DDPState("int4", controller=1), DtypeError, "controller"),
        (lambda: DDPState("int4", warmup_steps=-1), InvalidArgumentError, "warmup_steps"),
        (lambda: DDPState("int4", timeout=-1), InvalidArgumentError, "timeout"),
        (lambda: DDPState("int4", rules="*.bias"), DtypeError, "rules"),  # type: ignore[arg-type]
        (lambda: DDPState("int4", rules=[("a", "int4", 1)]), InvalidArgumentError, r"rules\[0\]"),
        (lambda: DDPState("int4", rules={"a": 4}), DtypeError, r"rules\[0\]"),
        (lambda: DDPState("int4", rules=[(1, "int4")]), DtypeError, "pattern"),
        (lambda: DDPState("int4").state_dict(), InvalidArgumentError, "init_process_group"),
    ],
)
def test_wrong_arguments(make: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make()


def test_rules() -> None:
    rules = Rules(
        "gift+hadamard+int4:rank=16:size=128:nonfinite=raise",
        [("head.*", "fp8_e4m3"), ("x", "direct"), ("y", None), ("head.bias", "int8")],
        error_feedback=True,
    )
    matrix, vector = torch.zeros(2, 2), torch.zeros(2)
    main = "gift+hadamard+int4:rank=16:size=128:nonfinite=raise:ef=1"
    direct = "hadamard+int4:size=128:nonfinite=raise:ef=1"
    wanted = [
        ("head.bias", vector, "fp8_e4m3:ef=1"),  # the first that matches
        ("x", vector, direct),
        ("y", matrix.half(), "fp16:nonfinite=raise"),
        ("layers.0.bias", vector, "bf16:nonfinite=raise:ef=1"),
        ("layers.0.weight", vector, "bf16:nonfinite=raise:ef=1"),
        ("input_layernorm.gain", matrix, "bf16:nonfinite=raise:ef=1"),
        ("tok_embeddings.weight", matrix, direct),
        ("layers.0.wq", matrix, main),
    ]
    for name, tensor, spec in wanted:
        assert rules.codec_for(name, tensor).spec == gcomm.codec(spec).spec, name
    assert rules.codec_for("a", matrix) is rules.codec_for("b", matrix)
    for text in ("fp32", "fp16"):
        assert Rules(text).codec_for("bias", vector).spec == text  # never coarser than what was asked for
    with pytest.raises(DtypeError, match="float64"):
        Rules(None).codec_for("w", matrix.double())


# ---- a rank is lost -----------------------------------------------------------------------------------------


class _Dies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return gradient


class _Mortal(Mixed):
    dying = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(torch.relu(self.up(self.embed(x)))) @ self.down
        return _Dies.apply(out) if self.dying else out  # type: ignore[no-any-return, no-untyped-call]


def _rank_dies(rank: int, _size: int) -> tuple[str, str, float]:
    model = _Mortal(odd_types=False)
    ddp = wrapped(model, DDPState("nvfp4", model, timeout=30), **UNUSED)
    train(ddp, rank, range(2))
    model.dying = rank == 1
    x, y = batch(rank, 3)
    loss = nn.functional.cross_entropy(ddp(x), y)
    started = time.monotonic()
    with pytest.raises(GcommError) as raised:
        loss.backward()
    return type(raised.value).__name__, str(raised.value), time.monotonic() - started


def test_a_rank_lost_during_backward(rank_pool: RankPools) -> None:
    with start_ranks(_rank_dies, 3) as ranks:
        outcomes = ranks.join(only=[0, 2])
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        kind, text, seconds = outcome.value
        assert kind == PeerLostError.__name__
        assert "rank 1" in text
        assert "last checkpoint" in text
        assert seconds < 10


# ---- not a number -------------------------------------------------------------------------------------------


def _with_an_inf(gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.clone()
    gradient[3, 5] = torch.inf
    return gradient


def _inf(rank: int, _size: int) -> dict[str, Any]:
    out = {}
    for policy in ("propagate", "zero", "raise"):
        torch.manual_seed(0)
        model = Mixed(odd_types=False)
        state = DDPState(f"int4:nonfinite={policy}:min_bytes=0", model, error_feedback=True)
        ddp = wrapped(model, state, **UNUSED)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        finite, raised = [], ""
        for step in range(6):
            optimizer.zero_grad()
            with contextlib.ExitStack() as stack:
                if step == 2 and rank == 1:
                    stack.callback(model.up.weight.register_hook(_with_an_inf).remove)
                try:
                    _backward(ddp, rank, step)
                except NonFiniteError as error:
                    raised = str(error)
                    continue
            good = all(torch.isfinite(p.grad).all() for p in ddp.parameters() if p.grad is not None)
            finite.append(bool(good))
            if good:
                optimizer.step()
        out[policy] = (finite, raised, bits(model))
    return out


def test_inf_in_one_gradient_at_one_step(rank_pool: RankPools) -> None:
    """The policy asked for, alike on all ranks; the steps after it are clean."""
    first, second = rank_pool(2).run(_inf)
    for policy in ("propagate", "zero", "raise"):
        assert first[policy][0] == second[policy][0], policy
        assert first[policy][2] == second[policy][2], policy
    assert first["propagate"][0] == [True, True, False, True, True, True]
    assert first["zero"][0] == [True] * 6
    assert first["raise"][0] == [True] * 5  # of the steps that did not raise
    for results in (first, second):
        assert "rank 1" in results["raise"][1]
        assert "zero them and go on" in results["raise"][1]
