"""FSDP2 with gcomm's reduce-scatter and all-gather, on CPUs over gloo."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import RankError, RankPools, start_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gcomm import errors
from gcomm.pytorch import FSDPAllGather, FSDPReduceScatter, compress_fsdp, summary

WIDTH = 96


class Net(nn.Module):
    """Uneven rows everywhere, one layer that only some steps use, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH + 1)
        self.norm = nn.LayerNorm(2 * WIDTH + 1)
        self.sometimes = nn.Linear(2 * WIDTH + 1, 2 * WIDTH + 1)
        self.also = nn.Linear(2 * WIDTH + 1, 2 * WIDTH + 1)
        self.frozen = nn.Linear(2 * WIDTH + 1, 2 * WIDTH + 1).requires_grad_(False)
        self.last = nn.Linear(2 * WIDTH + 1, 7)

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        x = self.frozen(self.norm(self.first(x).relu()))
        return self.last(self.also(x) if skip else self.also(self.sometimes(x)))


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """Gradients, gathered."""
    return {
        name: each.grad.full_tensor().float() if hasattr(each.grad, "full_tensor") else each.grad.float()
        for name, each in model.named_parameters()
        if each.grad is not None
    }


def sharded(size: int, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    model = Net()
    mesh = init_device_mesh("cpu", (size,))
    fully_shard(model.first, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def data(step: int, rank: int) -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))


def backward(model: Any, rank: int, step: int = 0, skip: bool = False) -> None:
    model(data(step, rank), skip).square().mean().backward()


def error_of(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """The largest relative error of a parameter's gradient; infinite where one is missing."""
    if found.keys() != exact.keys():
        return float("inf")
    return max(float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact)


def plain(size: int, rank: int, run: Callable[[Any], None], **options: Any) -> dict[str, torch.Tensor]:
    model = sharded(size, **options)
    run(model)
    return whole(model)


def _gradients(rank: int, size: int) -> None:
    torch.set_num_threads(1)

    def once(model: Any) -> None:
        backward(model, rank)

    def skipped(model: Any) -> None:
        for step, skip in enumerate((True, False, True)):
            model.zero_grad()
            backward(model, rank, step, skip)

    def accumulated(model: Any) -> None:
        model.set_requires_gradient_sync(False)
        backward(model, rank, 0)
        backward(model, rank, 1)
        model.set_requires_gradient_sync(True)
        backward(model, rank, 2)

    def twice(model: Any) -> None:  # each reduced by itself, then added
        backward(model, rank, 0)
        backward(model, rank, 1)

    for run in (once, skipped, accumulated, twice):
        exact = plain(size, rank, run)
        for codec, bound in (("fp8_e4m3:min_bytes=0", 0.04), ("fp32", 1e-6), ("int8:ef=1", 0.02)):
            model = sharded(size)
            state = compress_fsdp(model, codec)
            run(model)
            found = whole(model)
            assert error_of(found, exact) < bound, (run.__name__, codec, error_of(found, exact))
            assert (model.frozen.weight.grad, exact.get("frozen.weight")) == (None, None)
        if size > 1:
            stats = state.stats
            assert stats["ratio"] > 3, stats
            assert stats["parameters"]["first.weight"]["codec"] == "int8:ef=1"
            # Norms and biases, by the rules' defaults.
            assert stats["parameters"]["norm.bias"]["codec"].startswith("bf16")
            assert stats["steps"] == {once: 1, skipped: 3, accumulated: 1, twice: 2}[run]
            assert "first.weight" in summary(state)
        else:  # FSDP reduces nothing then
            assert state.stats["steps"] == 0

    # Element types: what is reduced, and what is computed in.
    exact = plain(size, rank, once)
    for policy, bound in (
        (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), 0.1),
        (MixedPrecisionPolicy(param_dtype=torch.bfloat16), 0.1),
        (MixedPrecisionPolicy(reduce_dtype=torch.float16), 0.05),  # divided before and after
        (MixedPrecisionPolicy(reduce_dtype=torch.float64), 1e-6),  # exact, by torch
    ):
        model = sharded(size, mp_policy=policy)
        compress_fsdp(model, "fp8_e4m3:min_bytes=0")
        once(model)
        assert error_of(whole(model), exact) < bound, policy
    # A sum whose factor FSDP applies itself.
    found = []
    for codec in (None, "int8:min_bytes=0"):
        model = sharded(size)
        if codec is not None:
            compress_fsdp(model, codec)
        for each in (model, model.first):
            each.set_gradient_divide_factor(2.0 * size)
            each.set_force_sum_reduction_for_comms(True)
        once(model)
        found.append(whole(model))
    assert error_of(found[1], found[0]) < 0.03

    # One object for any module, without names; weights in a codec on request.
    model, scatter = sharded(size), FSDPReduceScatter("int8:min_bytes=0")
    for each in (model, model.first):
        each.set_custom_reduce_scatter(scatter)
        each.set_custom_all_gather(FSDPAllGather())
    once(model)
    assert error_of(whole(model), exact) < 0.02
    model.first.set_custom_all_gather(FSDPAllGather("int8:min_bytes=0"))
    output = model(data(0, 0))
    other = sharded(size)(data(0, 0))
    assert torch.allclose(output, other, rtol=0, atol=0.1 * float(other.abs().max()))
    assert torch.equal(output, other) == (size == 1)
    shard = model.first.weight.to_local()
    assert torch.equal(shard, sharded(size).first.weight.to_local())  # as they were

    # Made on no device, then filled.
    with torch.device("meta"):
        model = Net()
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    compress_fsdp(model, "fp8_e4m3")
    model.to_empty(device="cpu")
    for name, each in model.named_parameters():
        value = sharded(size).get_parameter(name).full_tensor()
        full = torch.distributed.tensor.distribute_tensor(value.detach(), each.device_mesh, each.placements)
        each.data.copy_(full)
    once(model)
    assert error_of(whole(model), exact) < 0.04


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_gradients_are_those_of_plain_fsdp(ranks: int, rank_pool: RankPools) -> None:
    rank_pool(ranks).run(_gradients, timeout=120)


def _train(model: Any, rank: int, steps: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in steps:
        backward(model, rank, step % 3, skip=step % 4 == 1)
        optimizer.step()
        optimizer.zero_grad()


def _keyed(rank: int, size: int) -> None:
    """Factored gift and error feedback: by parameter, saved and resumed with the same bits."""
    torch.set_num_threads(1)
    codec = "gift+int4:geometry=factored:refresh=2:min_bytes=0"
    model = sharded(size)
    state = compress_fsdp(model, codec, rules=[("last.*", "int8:ef=1:min_bytes=0")])
    _train(model, rank, range(6))
    saved = state.state_dict(), {name: each.detach().clone() for name, each in model.state_dict().items()}
    rows = {row["key"]: row for row in state.report()}
    assert rows["first.weight"]["path"] == "by row and column", rows
    assert rows["first.weight"]["cols"] == WIDTH
    assert rows["first.weight"]["rows"] == -(-(2 * WIDTH + 1) // size) * size
    assert rows["sometimes.weight"]["calls"] < rows["also.weight"]["calls"], rows
    _train(model, rank, range(6, 12))

    again = sharded(size, seed=1)
    again.load_state_dict(saved[1])
    resumed = compress_fsdp(again, codec, rules=[("last.*", "int8:ef=1:min_bytes=0")])
    resumed.load_state_dict(saved[0])
    _train(again, rank, range(6, 12))
    for (name, a), b in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(a.to_local(), b.to_local()), name
    wrong = {**saved[0], "rank": rank + 1}
    for bad, words in ((wrong, "rank"), ({**saved[0], "codecs": {"int4": b""}}, "int4"), (3, "dict")):
        with pytest.raises(errors.CodecError, match=words):
            resumed.load_state_dict(bad)  # type: ignore[arg-type]


def test_keyed_codecs_by_parameter(rank_pool: RankPools) -> None:
    rank_pool(3).run(_keyed, timeout=120)


def _refusals(rank: int, size: int) -> None:
    model = sharded(size)
    with pytest.raises(errors.CodecError, match="geometry=factored works"):
        compress_fsdp(model, "gift+nvfp4")
    with pytest.raises(errors.CodecError, match="geometry=factored works"):
        compress_fsdp(model, "int8", rules=[("*", "gift+int8")])
    with pytest.raises(errors.CodecError, match="unknown format"):
        FSDPReduceScatter("int9")
    with pytest.raises(errors.InvalidArgumentError, match="give module="):
        FSDPReduceScatter("int8:ef=1")
    with pytest.raises(errors.InvalidArgumentError, match="give module="):
        FSDPReduceScatter("int8", rules=[("*", "int4")])
    with pytest.raises(errors.InvalidArgumentError, match="weights are"):
        FSDPAllGather("int8:ef=1")
    with pytest.raises(errors.DtypeError, match="fully_shard was applied to"):
        FSDPReduceScatter("int8", nn.Linear(2, 2))
    with pytest.raises(errors.InvalidArgumentError, match="fully_shard"):
        compress_fsdp(nn.Linear(2, 2))
    with pytest.raises(errors.DtypeError, match="got int"):
        FSDPReduceScatter(3)  # type: ignore[arg-type]
    # A factor that FSDP wants the sum to have.
    compress_fsdp(model, "int8")
    model.set_gradient_divide_factor(5.0)
    with pytest.raises(errors.UnsupportedError, match="set_force_sum_reduction_for_comms"):
        backward(model, rank)
    # Ranks that disagree.
    model = sharded(size)
    compress_fsdp(model, "int8:min_bytes=0" if rank else "int4:min_bytes=0")
    with pytest.raises(errors.MismatchError, match="int4"):
        backward(model, rank)
    dist.barrier()


def test_what_is_refused(rank_pool: RankPools) -> None:
    rank_pool(2).run(_refusals, timeout=120)


def _lost(rank: int, size: int) -> tuple[str, float]:
    torch.set_num_threads(1)
    model = sharded(size)
    compress_fsdp(model, "int8", timeout=10)
    backward(model, rank)
    loss = model(data(1, rank)).square().mean()
    dist.barrier()
    started = time.monotonic()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises((errors.GcommError, RuntimeError)) as caught:
        loss.backward()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    return type(caught.value).__name__, time.monotonic() - started


def test_a_rank_lost_in_backward() -> None:
    with start_ranks(_lost, 3) as ranks:
        outcomes = ranks.join(100, only=[0, 2])
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, RankError(outcomes)
        # gloo's own, where the rank was lost to the gathering of weights.
        assert outcome.value[0] in ("PeerLostError", "AbortedError", "RuntimeError", "DistBackendError")
        assert outcome.value[1] < 15
