"""The verbs over every transport: what goes in, what comes out, in torch's argument order.

Bits of compressed results are test_replay.py's business; here codecs are None (exact) or only bounded.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import TRANSPORTS, RankPools, run_local, run_over

import gcomm
from gcomm import Communicator

MOVED_DTYPES = [
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64),
    *(torch.bool, torch.complex64, torch.complex128),
]
MOVED_NUMPY = [
    *(np.float32, np.float16, np.float64, np.bool_, np.complex64, np.complex128),
    *(np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]


def _bytes(rank: int, count: int) -> torch.Tensor:
    """Any bytes; as bool they must be 0 or 1."""
    return torch.arange(count, dtype=torch.int64).mul(rank + 3).remainder(2).to(torch.uint8)


def _reductions(comm: Communicator) -> None:
    n, rank = comm.size, comm.rank
    total = n * (n + 1) / 2
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for count in (0, 1, 7, 5000):
            x = torch.full((count,), rank + 1.0, dtype=dtype)
            assert comm.all_reduce(x, codec=None) is None
            assert torch.equal(x, torch.full((count,), total, dtype=dtype))
            x = torch.full((count,), rank + 1.0, dtype=dtype)
            y = torch.empty_like(x)
            comm.all_reduce(x, "avg", codec=None, out=y)
            assert torch.equal(x, torch.full((count,), rank + 1.0, dtype=dtype))
            assert torch.equal(y, torch.full((count,), total, dtype=torch.float32).div(n).to(dtype))
            source = torch.arange(count * n, dtype=torch.float32).remainder(8).add(rank).to(dtype)
            part = torch.empty(count, dtype=dtype)
            comm.reduce_scatter_tensor(part, source, codec=None)
            everything = sum(torch.arange(count * n, dtype=torch.float32).remainder(8).add(r) for r in range(n))
            assert torch.equal(part, torch.as_tensor(everything)[rank * count : (rank + 1) * count].to(dtype))
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, "sum", "avg"):
        x = torch.ones(3)
        comm.all_reduce(x, op)
        assert x.tolist() == [1.0 if op in ("avg", dist.ReduceOp.AVG) else n] * 3
    several = [torch.full((k,), rank + k * 1.0) for k in (3, 1, 4096, 0)]
    comm.all_reduce_coalesced(several, codec=None, keys=["a", "b", None, "d"])
    for k, x in zip((3, 1, 4096, 0), several, strict=True):
        assert torch.equal(x, torch.full((k,), n * (n - 1) / 2 + n * k))


def _movement(comm: Communicator) -> None:
    n, rank = comm.size, comm.rank
    for dtype in MOVED_DTYPES:
        size = dtype.itemsize
        mine = _bytes(rank, 40 * size).view(dtype)
        gathered = torch.zeros(40 * size * n, dtype=torch.uint8).view(dtype)
        comm.all_gather_into_tensor(gathered, mine)
        expected = torch.cat([_bytes(r, 40 * size) for r in range(n)])
        assert torch.equal(gathered.view(torch.uint8), expected), dtype
        x = mine.clone()
        comm.broadcast(x, n - 1)
        assert torch.equal(x.view(torch.uint8), _bytes(n - 1, 40 * size)), dtype
        following, previous = (rank + 1) % n, (rank - 1) % n
        x = torch.zeros(40 * size, dtype=torch.uint8).view(dtype)
        work = comm.send(mine, following, async_op=True)
        comm.recv(x, previous)
        assert work is not None
        work.wait()
        assert torch.equal(x.view(torch.uint8), _bytes(previous, 40 * size)), dtype
    for kind in MOVED_NUMPY:
        y = np.full(5, rank).astype(kind)
        comm.broadcast(y, 1)
        assert np.array_equal(y, np.full(5, 1).astype(kind)), kind
    comm.barrier()


def _all_to_all(comm: Communicator) -> None:
    n, rank = comm.size, comm.rank
    source = torch.arange(n * 6).reshape(n * 2, 3) + 100 * rank
    target = torch.empty_like(source)
    comm.all_to_all_single(target, source)
    parts = [torch.arange(n * 6).reshape(n, 2, 3)[rank] + 100 * r for r in range(n)]
    assert torch.equal(target, torch.cat(parts))
    # Rank r has r + s rows for rank s.
    sizes = [rank + s for s in range(n)]
    source = torch.cat([torch.full((rank + s, 2), 10.0 * rank + s) for s in range(n)])
    target = torch.empty(sum(sizes), 2)
    comm.all_to_all_single(target, source, sizes, sizes)
    assert torch.equal(target, torch.cat([torch.full((rank + r, 2), 10.0 * r + rank) for r in range(n)]))


def _shared_memory(comm: Communicator) -> None:
    """FSDP gathers into memory that holds the input, and scatters into a part of the input."""
    n, rank = comm.size, comm.rank
    whole = torch.zeros(n, 5000)
    whole[rank] = rank + 1.0
    comm.all_gather_into_tensor(whole, whole[rank])
    assert torch.equal(whole, torch.arange(1.0, n + 1)[:, None].expand(n, 5000))
    comm.reduce_scatter_tensor(whole[rank], whole, codec=None)
    assert torch.equal(whole[rank], torch.full((5000,), n * (rank + 1.0)))
    for other in range(n):
        if other != rank:
            assert torch.equal(whole[other], torch.full((5000,), other + 1.0))
    x = torch.arange(n * 2.0) + 10 * rank
    comm.all_to_all_single(x, x)
    assert x.tolist() == [v + 10 * r + 2 * rank for r in range(n) for v in (0, 1)]


def _strided(comm: Communicator) -> None:
    n = comm.size
    memory = torch.arange(12.0).reshape(3, 4)
    comm.all_reduce(memory[:, 1:3], codec=None)
    expected = torch.arange(12.0).reshape(3, 4)
    expected[:, 1:3] *= n
    assert torch.equal(memory, expected)
    wide = torch.zeros(2 * n, 4)
    comm.all_gather_into_tensor(wide[:, ::2], torch.ones(2, 2).t())
    assert torch.equal(wide, torch.tensor([1.0, 0, 1, 0]).expand(2 * n, 4))
    columns = np.zeros((4, 6), np.float32)
    columns[:, 2] = comm.rank
    comm.broadcast(columns[:, 2], 0)
    assert not columns.any()


def _compressed(comm: Communicator) -> list[bytes]:
    n, rank = comm.size, comm.rank
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(60000, generator=generator)
    exact = x.clone()
    results = [x.clone()]
    comm.all_reduce(exact, codec=None)
    work = comm.all_reduce(results[0], async_op=True)
    assert work is not None
    assert work.wait() is True
    assert work.stats["path"] == "direct"
    assert 3.5 < work.stats["raw_bytes"] / work.stats["wire_bytes"] < 4
    assert work.stats["total_s"] > 0
    assert work.stats["nonfinite"] is False
    results.append(torch.empty(60000 * n))
    comm.all_gather_into_tensor(results[1], x, codec="hadamard+int8")
    results.append(x.clone())
    comm.broadcast(results[2], 0, codec=gcomm.codec("int8"))
    # Two roundings to 1/16 of a value's power of two, or to half of the block's last place.
    scale = exact.abs().max()
    assert (results[0] - exact).abs().max() <= scale / 16 * (n + 1)
    assert (results[1][60000 * rank :][:60000] - x).abs().max() < 0.1
    return [result.numpy().tobytes() for result in results]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "body", [_reductions, _movement, _all_to_all, _shared_memory, _strided], ids=lambda fn: fn.__name__[1:]
)
def test_verb(transport: str, ranks: int, body: Any, rank_pool: RankPools) -> None:
    run_over(transport, ranks, rank_pool, body)


@pytest.mark.parametrize("ranks", [2, 3])
def test_compressed_results_are_the_same_on_all_ranks_and_transports(ranks: int, rank_pool: RankPools) -> None:
    results = [run_over(transport, ranks, rank_pool, _compressed) for transport in TRANSPORTS]
    for of_transport in results:
        assert of_transport == [of_transport[0]] * ranks
    assert results == [results[0]] * len(TRANSPORTS)


def _statistics(comm: Communicator) -> None:
    comm.all_reduce(torch.ones(4))
    comm.all_reduce(torch.ones(100_000))
    stats = comm.stats
    assert stats["calls"] == 2
    assert stats["raw_path_calls"] == 1
    assert 0 < stats["wire_bytes"] < stats["raw_bytes"]
    assert stats["encode_s"] > 0
    assert stats["decode_s"] > 0
    assert stats["workspace_bytes"] > 0
    assert comm.transport in repr(comm)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_statistics(transport: str, rank_pool: RankPools) -> None:
    run_over(transport, 2, rank_pool, _statistics)


def _with_group_of_communicator(comm: Communicator) -> None:
    """The package's verbs take a Communicator as the group; ranks are counted in it."""
    n, rank = comm.size, comm.rank
    x = torch.ones(3)
    gcomm.all_reduce(x, "avg", comm)
    assert x.tolist() == [1, 1, 1]
    gcomm.all_reduce_coalesced([x], "sum", comm)
    part = torch.empty(1)
    gcomm.reduce_scatter_tensor(part, torch.ones(n), "sum", comm)
    gathered = torch.empty(n)
    gcomm.all_gather_into_tensor(gathered, part, comm)
    assert gathered.tolist() == [float(n)] * n
    gcomm.all_to_all_single(torch.empty(n), gathered, None, None, comm)
    gcomm.broadcast(x, n - 1, comm)
    if rank == 0:
        gcomm.send(x, 1, comm)
    elif rank == 1:
        gcomm.recv(x, 0, comm)
    gcomm.barrier(comm)


def test_verbs_take_a_communicator_as_group() -> None:
    run_local(_with_group_of_communicator, 2)
