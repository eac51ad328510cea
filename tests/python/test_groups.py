"""Communicators of torch process groups: made at first use, one a group, whatever groups there are."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import RankPools, run_ranks

import gcomm
from gcomm import Communicator, errors
from gcomm._torch_group import _communicators


def _sum(group: Any, value: float, codec: Any = None) -> float:
    x = torch.full((3,), value)
    gcomm.all_reduce(x, "sum", group, codec=codec)
    assert x.tolist() == [x[0].item()] * 3
    return x[0].item()


def _default_group(rank: int, size: int) -> None:
    x = torch.ones(10) * (rank + 1)
    gcomm.all_reduce(x)
    y = torch.ones(10) * (rank + 1)
    dist.all_reduce(y)
    assert torch.equal(x, y)
    assert _sum(dist.group.WORLD, 1.0) == size
    assert len(_communicators) == 1
    comm = next(iter(_communicators.values()))
    assert (comm.rank, comm.size, comm.transport) == (rank, size, "tcp")


def test_default_group(rank_pool: RankPools) -> None:
    rank_pool(3).run(_default_group)


def _sub_groups(rank: int, size: int) -> None:
    assert size == 3
    pairs = [[0, 1], [1, 2], [0, 2]]
    groups = [dist.new_group(pair) for pair in pairs]
    # Overlapping groups, all alive at once, used in turn.
    for _ in range(3):
        for group, pair in zip(groups, pairs, strict=True):
            if rank in pair:
                assert _sum(group, rank + 1.0) == sum(pair) + 2
        assert _sum(None, rank + 1.0) == 6
    outside = next(group for group, pair in zip(groups, pairs, strict=True) if rank not in pair)
    with pytest.raises(ValueError, match=f"all_reduce: rank {rank} is not a member of the group"):
        gcomm.all_reduce(torch.ones(2), "sum", outside)
    # Ranks are global, as in torch.
    if rank in (1, 2):
        x = torch.full((4,), float(rank))
        gcomm.broadcast(x, 2, groups[1])
        assert x.tolist() == [2.0] * 4
        if rank == 1:
            gcomm.send(x + 1, 2, groups[1])
        else:
            gcomm.recv(x, 1, groups[1])
            assert x.tolist() == [3.0] * 4
        with pytest.raises(
            ValueError, match=r"broadcast: argument 'src' on rank \d: global rank 0 is not in the group"
        ):
            gcomm.broadcast(x, 0, groups[1])
    for group, pair in zip(groups, pairs, strict=True):
        if rank in pair:
            dist.destroy_process_group(group)


def test_sub_groups(rank_pool: RankPools) -> None:
    rank_pool(3).run(_sub_groups)


def _different_orders(rank: int, size: int) -> None:
    """Several groups of the same ranks, waited for in another order than used."""
    groups = [dist.new_group(list(range(size))) for _ in range(3)]
    works = []
    for group in groups:
        x = torch.full((70000,), rank + 1.0)
        works.append((x, gcomm.all_reduce(x, "avg", group, codec="int8", async_op=True)))
    for x, work in reversed(works):
        assert work is not None
        work.wait()
        assert (x - (size + 1) / 2).abs().max() < 0.05
    for group in groups:
        dist.destroy_process_group(group)


def test_several_groups_of_the_same_ranks(rank_pool: RankPools) -> None:
    rank_pool(2).run(_different_orders)


def _cache_ends_with_the_group(rank: int, size: int) -> None:
    before = len(_communicators)
    group = dist.new_group(list(range(size)))
    _sum(group, 1.0)
    assert len(_communicators) == before + 1
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert len(_communicators) == before


def test_the_cache_does_not_keep_groups(rank_pool: RankPools) -> None:
    rank_pool(2).run(_cache_ends_with_the_group)


def _destroyed_first_and_made_anew(rank: int, size: int, store: str) -> None:
    explicit = Communicator.from_torch()
    assert _sum(None, 1.0) == size
    work = gcomm.all_reduce(torch.ones(100_000), async_op=True)
    dist.destroy_process_group()
    assert work is not None
    work.wait()
    # A communicator needs its group only to be made.
    assert _sum(explicit, 2.0) == 2 * size
    with pytest.raises(ValueError, match="no default group"):
        gcomm.all_reduce(torch.ones(2))
    for turn in range(2):
        dist.init_process_group("gloo", init_method=f"file://{store}{turn}", rank=rank, world_size=size)
        assert _sum(None, 1.0) == size
        dist.destroy_process_group()
    explicit.close()


def test_group_destroyed_first_and_made_anew(tmp_path: Any) -> None:
    run_ranks(_destroyed_first_and_made_anew, 2, str(tmp_path / "store"))


def _transports(rank: int, size: int) -> None:
    with Communicator.from_torch(transport="torch") as one, Communicator.from_torch(transport="torch") as two:
        assert one.transport == two.transport == "torch"
        for i in range(5):
            assert _sum(one, 1.0 * i) == size * i
            assert _sum(two, 2.0 * i) == 2.0 * size * i
    with Communicator.from_torch(transport="tcp") as comm:
        assert comm.transport == "tcp"
        assert _sum(comm, 1.0) == size
    group = dist.new_group([1, 0])
    with Communicator.from_torch(group, transport="torch") as comm:
        assert (comm.rank, comm.size) == (dist.get_rank(group), 2)
        assert _sum(comm, 1.0) == 2
    dist.destroy_process_group(group)


def test_transports(rank_pool: RankPools) -> None:
    rank_pool(2).run(_transports)


def _ranks_that_ask_for_different_transports(rank: int, _size: int) -> None:
    with pytest.raises(
        errors.MismatchError, match=r"the ranks differ in transport .rank 0: tcp, rank 1: torch"
    ):
        Communicator.from_torch(transport="tcp" if rank == 0 else "torch")
    assert _sum(None, 1.0) == 2


def test_ranks_that_ask_for_different_transports(rank_pool: RankPools) -> None:
    rank_pool(2).run(_ranks_that_ask_for_different_transports)


def _torch_traffic_in_between(rank: int, size: int) -> None:
    """The group's own traffic and ours never meet."""
    with Communicator.from_torch(transport="torch") as comm:
        for i in range(20):
            x = torch.full((2000,), rank + 1.0)
            ours = comm.all_reduce(x, async_op=True, codec=None)
            y = torch.full((2000,), float(i))
            theirs = dist.all_reduce(y, async_op=True)
            if rank == 0:
                dist.send(torch.full((3,), float(i)), 1)
            else:
                z = torch.empty(3)
                dist.recv(z, 0)
                assert z.tolist() == [i] * 3
            theirs.wait()
            assert ours is not None
            ours.wait()
            assert x.tolist() == [size * (size + 1) / 2] * 2000
            assert y.tolist() == [float(i) * size] * 2000


def test_torch_traffic_in_between(rank_pool: RankPools) -> None:
    rank_pool(2).run(_torch_traffic_in_between)


def _distributed_tensor(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    tensor = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    with pytest.raises(errors.GcommError, match="pass its local tensor"):
        gcomm.all_reduce(tensor)
    local = tensor.to_local()
    gcomm.all_reduce(local, codec=None)
    assert local.tolist() == [[float(size)] * 2] * 2


def test_distributed_tensors_are_refused_in_words(rank_pool: RankPools) -> None:
    rank_pool(2).run(_distributed_tensor)
