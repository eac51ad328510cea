"""``init_process_group("gcomm")``: what is compressed, and that nothing else is."""

from __future__ import annotations

import datetime
import os
import re
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from ranks import RankError, run_ranks, start_ranks
from torch.distributed.distributed_c10d import _coalescing_manager

import gcomm
from gcomm import errors
from gcomm.pytorch import BackendOptions, backend_stats

SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX
LARGE = 50_000


def values(rank: int, count: int = LARGE, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)


def alike_everywhere(tensor: torch.Tensor) -> bool:
    everybody = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, tensor)
    return all(torch.equal(each, tensor) for each in everybody)


def compressed(group: Any = None) -> int:
    return int(backend_stats(group)["compressed_calls"])


# ---- what is compressed -------------------------------------------------------------------------------------


def _reductions(rank: int, size: int) -> None:
    comm = gcomm.Communicator.from_torch()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for op in (SUM, AVG):
            x = values(rank, dtype=dtype)
            expected = x.clone()
            comm.all_reduce(expected, op, codec="int8")
            before = compressed()
            dist.all_reduce(x, op)
            assert compressed() == before + 1
            # The very bits of the codec, on all ranks.
            assert torch.equal(x, expected)
            assert alike_everywhere(x)
            source = values(rank, size * LARGE, dtype)
            mine, part = torch.empty(LARGE, dtype=dtype), torch.empty(LARGE, dtype=dtype)
            comm.reduce_scatter_tensor(part, source, op, codec="int8")
            dist.reduce_scatter_tensor(mine, source, op)
            assert torch.equal(mine, part)
            dist.reduce_scatter(mine.zero_(), list(source.chunk(size)), op)
            assert torch.equal(mine, part)
            assert torch.equal(source, values(rank, size * LARGE, dtype))
            assert compressed() == before + 3

    # Several in one call: the large ones of each type in the codec, the others exactly.
    tensors = [torch.ones(3), values(rank), values(rank, 40_000), torch.full((5,), float(rank))]
    expected = [each.clone() for each in tensors[1:3]]
    comm.all_reduce_coalesced(expected, codec="int8")
    with _coalescing_manager(async_ops=True) as manager:
        for each in tensors:
            dist.all_reduce(each)
    manager.wait()
    assert torch.equal(tensors[0], torch.full((3,), float(size)))
    assert torch.equal(tensors[3], torch.full((5,), float(sum(range(size)))))
    assert all(torch.equal(a, b) for a, b in zip(tensors[1:3], expected, strict=True))

    # Functional collectives, as FSDP2 and DTensor use them.
    x = funcol.all_reduce(values(rank), "avg", dist.group.WORLD).clone()
    y = values(rank)
    comm.all_reduce(y, "avg", codec="int8")
    assert torch.equal(x, y)

    # Works and futures.
    x, y = values(rank), values(rank)
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    assert future.then(lambda done: float(done.value()[0][0])).wait() == float(x[0])
    comm.all_reduce(y, codec="int8")
    assert torch.equal(x, y)
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.wait()
    assert work.result()[0] is x
    assert work.get_future() is future

    # A strided view, large and small; elements beside it are untouched.
    for rows in (LARGE, 4):
        whole = torch.arange(3.0 * rows).view(rows, 3) + rank
        view = whole[:, :2]
        exact = size * torch.arange(3.0 * rows).view(rows, 3)[:, :2] + sum(range(size))
        dist.all_reduce(view)
        assert torch.allclose(view, exact, rtol=0, atol=float(exact.max()) * size / 100)
        assert rows == LARGE or torch.equal(view, exact)
        assert torch.equal(whole[:, 2], torch.arange(2.0, 3 * rows, 3) + rank)
    with pytest.raises((errors.GcommError, RuntimeError), match="memory"):
        dist.all_reduce(torch.ones(1).expand(5))

    # 3 x 60000 is beyond float16, their average is not; and it has the same scale on both paths.
    for count in (10, LARGE):
        x = torch.full((count,), 60_000.0, dtype=torch.float16)
        dist.all_reduce(x, AVG)
        if count == LARGE:
            assert torch.allclose(x.float(), torch.full((count,), 60_000.0), rtol=0.01)
            dist.all_reduce(x, SUM)
            assert not torch.isfinite(x).any()  # what the format has for it
    for count in (7, LARGE):
        x = torch.full((count,), 2.0 + rank)
        dist.all_reduce(x, AVG)
        assert torch.allclose(x, torch.full((count,), 2 + (size - 1) / 2), rtol=0.02)
    comm.close()


def _odd_counts(rank: int, size: int) -> None:
    """With min_bytes=0 everything goes the encoded way: counts that do not divide."""
    group = dist.new_group(pg_options={"codec": "fp8_e4m3:min_bytes=0"})
    for count in (0, 1, 2, 7, size - 1, size + 1, 127, 128, 129, 4096, 4097):
        x, scale = values(rank, count), 6.0 * size
        exact = sum((values(at, count) for at in range(size)), torch.zeros(count))
        dist.all_reduce(x, group=group)
        assert torch.allclose(x, exact, rtol=0, atol=scale / 16)
        assert alike_everywhere(x)
    column = values(rank, 300)[:, None]
    before = backend_stats(group)
    dist.all_reduce(column, group=group)
    after = backend_stats(group)
    assert after["wire_bytes"] - before["wire_bytes"] < after["raw_bytes"] - before["raw_bytes"]
    dist.destroy_process_group(group)


# ---- what is exact ------------------------------------------------------------------------------------------


def _exact_calls(group: Any) -> dict[str, Callable[[], Any]]:
    """Calls whose results must be those of gloo, bit for bit."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def reduce(dtype: torch.dtype, op: Any, count: int) -> torch.Tensor:
        x = (values(rank, count) * 50).to(dtype)
        dist.all_reduce(x, op, group=group)
        return x

    def to_first() -> torch.Tensor:
        x = values(rank)
        dist.reduce(x, 0, group=group)
        return x if rank == 0 else torch.zeros(1)

    def broadcast() -> torch.Tensor:
        x = values(rank)
        dist.broadcast(x, 1, group=group)
        return x

    def gather_into() -> torch.Tensor:
        x = torch.empty(size * LARGE)
        dist.all_gather_into_tensor(x, values(rank), group=group)
        return x

    def gather() -> list[torch.Tensor]:
        parts = [torch.empty(LARGE) for _ in range(size)] if rank == 0 else None
        dist.gather(values(rank), parts, 0, group=group)
        return parts or []

    def scatter() -> torch.Tensor:
        x = torch.empty(LARGE)
        dist.scatter(x, [values(i) for i in range(size)] if rank == 0 else None, 0, group=group)
        return x

    def to_all() -> torch.Tensor:
        x = torch.empty(size * LARGE)
        dist.all_to_all_single(x, values(rank, size * LARGE), group=group)
        return x

    def around() -> torch.Tensor:
        x = torch.empty(LARGE)
        right, left = (rank + 1) % size, (rank - 1) % size
        ops = [
            dist.P2POp(dist.isend, values(rank), right, group),
            dist.P2POp(dist.irecv, x, left, group),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return x

    def objects() -> Any:
        listed: list[Any] = [None] * size
        dist.all_gather_object(listed, {"rank": rank}, group=group)
        one = [rank]
        dist.broadcast_object_list(one, 1, group=group)
        return listed, one

    def scatter_reduce(op: Any, count: int) -> torch.Tensor:
        x = torch.empty(count)
        dist.reduce_scatter_tensor(x, values(rank, size * count), op, group=group)
        return x

    def barriers() -> None:
        dist.barrier(group=group)
        (group or dist.group.WORLD).monitored_barrier()

    return {
        "int64": lambda: reduce(torch.int64, SUM, LARGE),
        "uint8": lambda: reduce(torch.uint8, MAX, LARGE),
        "float64": lambda: reduce(torch.float64, SUM, LARGE),
        "float64 avg": lambda: reduce(torch.float64, AVG, LARGE),
        "max": lambda: reduce(torch.float32, MAX, LARGE),
        "small": lambda: reduce(torch.float32, SUM, 1000),
        "small avg": lambda: reduce(torch.bfloat16, AVG, 1000),
        "bool": lambda: reduce(torch.bool, MAX, 100),
        "reduce": to_first,
        "broadcast": broadcast,
        "all_gather_into_tensor": gather_into,
        "gather": gather,
        "scatter": scatter,
        "all_to_all": to_all,
        "p2p": around,
        "objects": objects,
        "reduce_scatter max": lambda: scatter_reduce(MAX, LARGE),
        "reduce_scatter small": lambda: scatter_reduce(SUM, 100),
        "barriers": barriers,
        "functional": lambda: funcol.all_gather_tensor(values(rank), 0, group or dist.group.WORLD).clone(),
    }


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, list) and a and isinstance(a[0], torch.Tensor):
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _others(rank: int, size: int) -> None:
    plain = dist.new_group(backend="gloo")
    expected = _exact_calls(plain)
    before = compressed()
    for name, call in _exact_calls(None).items():
        assert _equal(call(), expected[name]()), name
    stats = backend_stats()
    assert compressed() == before, stats
    for reason in ("int64", "float64", "op MAX", "under 65536 bytes"):
        assert reason in stats["exact"], (reason, stats)
    with pytest.raises(errors.InvalidArgumentError, match="is not a group of backend"):
        backend_stats(plain)


def _groups(rank: int, size: int) -> None:
    assert "gcomm" in dist.get_backend()
    # Groups take the default group's options, unless they have their own.
    some = dist.new_group([0, 1])
    own = dist.new_group(pg_options=BackendOptions("int4", min_bytes=1 << 20))
    parts = dist.group.WORLD.split_group([0, 1])
    assert (parts is None) == (rank > 1)
    if rank < 2:
        for group in (some, parts):
            x = values(rank)
            group.allreduce([x]).wait()
            assert compressed(group) == 1
            assert backend_stats(group)["codec"] == "int8"
    x = torch.ones(LARGE)
    dist.all_reduce(x, group=own)
    assert torch.equal(x, torch.full((LARGE,), float(size)))
    assert backend_stats(own)["exact"] == {"under 1048576 bytes": 1}
    alone = dist.new_group([rank], use_local_synchronization=True)
    dist.all_reduce(x, AVG, group=alone)
    assert torch.equal(x, torch.full((LARGE,), float(size)))
    assert backend_stats(alone)["exact"] == {"one rank": 1}


def _all(rank: int, size: int, name: str, folder: str) -> None:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        dist.init_process_group(name)
    warnings.simplefilter("ignore")
    _reductions(rank, size)
    _odd_counts(rank, size)
    _others(rank, size)
    _groups(rank, size)
    dist.destroy_process_group()
    # Again, with something else.
    os.environ["GCOMM_CODEC"] = "none"
    dist.init_process_group("cpu:gcomm", init_method=f"file://{folder}/again", rank=rank, world_size=size)
    x = values(rank)
    dist.all_reduce(x)
    assert backend_stats()["exact"] == {"no codec": 1}
    dist.destroy_process_group()


@pytest.mark.parametrize(("ranks", "name"), [(2, "gcomm"), (3, "cpu:gcomm,cuda:nccl")])
def test_everything(ranks: int, name: str, tmp_path: Path) -> None:
    run_ranks(_all, ranks, name, str(tmp_path), backend=None, env={"GCOMM_CODEC": "int8"}, timeout=120)


# ---- DistributedDataParallel without a hook -----------------------------------------------------------------


def _ddp(rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gcomm", pg_options="int8")
    torch.manual_seed(rank)
    layers = [torch.nn.Linear(256, 256) for _ in range(6)]
    model: Any = torch.nn.Sequential(*layers)
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    # Several buckets in flight, and the map of unused parameters (integers).
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.3, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        x = torch.randn(8, 256, generator=torch.Generator().manual_seed(100 * step + rank))
        with model.no_sync() if step == 1 else warnings.catch_warnings():
            model(x).square().mean().backward()
        if step != 1:  # whose gradients are added to the next step's
            optimizer.step()
            optimizer.zero_grad()
    assert all(alike_everywhere(each.detach()) for each in model.parameters())
    stats = backend_stats()
    assert stats["compressed_calls"] >= 4, stats
    assert stats["ratio"] > 3.5, stats
    dist.destroy_process_group()


def test_ddp_without_a_hook() -> None:
    run_ranks(_ddp, 3, backend=None, timeout=120)


# ---- what goes wrong ----------------------------------------------------------------------------------------

# GCOMM_CODEC of ranks 0 and 1, pg_options, error, its words on both.
BAD: dict[str, tuple[str, str, Any, type[Exception], str]] = {
    "unknown format": ("int9", "int9", None, errors.CodecError, "unknown format 'int9'"),
    "unknown option": ("int8:x=1", "int8:x=1", None, errors.CodecError, "GCOMM_CODEC.*unknown option 'x'"),
    "of one rank": ("int8", "int9", None, errors.GcommError, "unknown format 'int9'"),
    "gift": ("gift+nvfp4", "gift+nvfp4", None, errors.CodecError, "ddp_hook"),
    "feedback": ("int8:ef=1", "int8:ef=1", None, errors.CodecError, "residual.*ddp_hook"),
    "different": ("int8", "int4", None, errors.MismatchError, r"codec \(rank 0: int8, rank 1: int4\)"),
    "option name": (
        "",
        "",
        {"codecs": "int8"},
        errors.InvalidArgumentError,
        "unknown option 'codecs'.*codec, min",
    ),
    "option type": ("", "", 3, errors.DtypeError, "pg_options.*got 3"),
    "min_bytes": ("", "", {"min_bytes": -1}, errors.InvalidArgumentError, "min_bytes.*-1"),
    "transport": (
        "",
        "",
        {"transport": "rdma"},
        errors.InvalidArgumentError,
        "expected one of auto, tcp, torch",
    ),
}


def _bad(rank: int, size: int, folder: str) -> list[str]:
    texts = []
    for name, (*codecs, options, kind, words) in BAD.items():
        os.environ["GCOMM_CODEC"] = codecs[rank]
        with pytest.raises(kind, match=words) as caught:
            dist.init_process_group(
                "gcomm", init_method=f"file://{folder}/{name}", rank=rank, world_size=size, pg_options=options
            )
        texts.append(str(caught.value))
        assert not dist.is_initialized()
    # Nothing of that is left.
    os.environ["GCOMM_CODEC"] = "int8"
    dist.init_process_group("gcomm", init_method=f"file://{folder}/good", rank=rank, world_size=size)
    # Ranks that disagree in a call; the group goes on.
    with pytest.raises(errors.MismatchError, match="50001"):
        dist.all_reduce(torch.ones(LARGE + rank))
    x = torch.ones(LARGE)
    dist.all_reduce(x)
    assert alike_everywhere(x)
    dist.destroy_process_group()
    return texts


def test_bad_options_are_named_on_every_rank(tmp_path: Path) -> None:
    first, second = run_ranks(_bad, 2, str(tmp_path), backend=None)
    at = list(BAD).index("different")
    assert first[at] == second[at]


def _lost(rank: int, size: int, how: str) -> tuple[str, float]:
    torch.set_num_threads(1)
    # Short only where it is what ends the call: a machine that is busy is slow to start things.
    dist.init_process_group("gcomm", timeout=datetime.timedelta(seconds=8 if how == "late" else 90))
    fatal: Callable[[], Any] = lambda: dist.all_reduce(values(rank))  # noqa: E731
    if how == "backward":
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
        for _ in range(2):
            model(torch.ones(4, 300)).sum().backward()
        fatal = model(torch.ones(4, 300)).sum().backward
    fatal() if how == "call" else dist.barrier()
    started = time.monotonic()
    if rank == 1:
        if how == "late":
            time.sleep(30)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises((errors.GcommError, RuntimeError)) as caught:
        fatal()
    seconds = time.monotonic() - started
    if how == "call":
        # Later calls say so, too.
        with pytest.raises(errors.ClosedError):
            dist.all_reduce(values(rank))
    dist.destroy_process_group()
    return f"{type(caught.value).__name__}: {caught.value}", seconds


@pytest.mark.parametrize("how", ["call", "backward", "late"])
def test_a_lost_rank_is_an_error_on_every_survivor(how: str) -> None:
    with start_ranks(_lost, 3, how, backend=None) as ranks:
        outcomes = ranks.join(100, only=[0, 2])
    expected = {"call": "PeerLostError: .*rank 1", "backward": "PeerLostError", "late": "Timeout|Aborted"}
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, RankError(outcomes)
        text, seconds = outcome.value
        assert re.search(expected[how], text), text
        assert seconds < 20


def _idle(rank: int, size: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.init_process_group("gcomm")
        for _ in range(3):
            dist.all_reduce(torch.ones(4))
        assert not caught
        dist.destroy_process_group()
    assert len(caught) == 1
    assert "none of 3 reductions so far was compressed (under 65536 bytes: 3)" in str(caught[0].message)


def test_a_warning_where_nothing_qualifies() -> None:
    run_ranks(_idle, 2, backend=None)
