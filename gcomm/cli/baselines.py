"""What ``--baseline`` measures in turn with ours: torch.distributed over gloo, and MPI's own collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcomm.cli.buffers import Buffer


@dataclass(frozen=True)
class Baseline:
    """Another library's collectives.

    Attributes
    ----------
    transport:
        What its rows say.
    dtypes:
        Element types that it can sum.
    calls:
        By collective: ``(input, output, op)``; the same buffer twice where the collective works in place.
    """

    transport: str
    dtypes: tuple[str, ...]
    calls: Mapping[str, Callable[[Buffer, Buffer, str], None]]


# ---- torch ---------------------------------------------------------------------------------------------------


def _torch_all_reduce(data: Buffer, _result: Buffer, op: str) -> None:
    import torch.distributed as dist

    dist.all_reduce(data.tensor)
    if op == "avg":  # gloo has no average; this is what a training loop does
        data.tensor.div_(dist.get_world_size())


def _newest(module: Any, *names: str) -> Any:
    """The first of these functions that this version of torch has; the others are its older names."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


def _torch_reduce_scatter(data: Buffer, result: Buffer, op: str) -> None:
    import torch.distributed as dist

    _newest(dist, "reduce_scatter_single", "reduce_scatter_tensor")(result.tensor, data.tensor)
    if op == "avg":
        result.tensor.div_(dist.get_world_size())


def _torch_all_gather(data: Buffer, result: Buffer, _op: str) -> None:
    import torch.distributed as dist

    _newest(dist, "all_gather_single", "all_gather_into_tensor")(result.tensor, data.tensor)


def _torch_all_to_all(data: Buffer, result: Buffer, _op: str) -> None:
    import torch.distributed as dist

    dist.all_to_all_single(result.tensor, data.tensor)


def _torch_broadcast(data: Buffer, _result: Buffer, _op: str) -> None:
    import torch.distributed as dist

    dist.broadcast(data.tensor, 0)


def _torch_send_recv(data: Buffer, result: Buffer, _op: str) -> None:
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    works = [dist.irecv(result.tensor, (rank - 1) % size), dist.isend(data.tensor, (rank + 1) % size)]
    for work in works:
        if work is not None:
            work.wait()


def _torch_barrier(_data: Buffer, _result: Buffer, _op: str) -> None:
    import torch.distributed as dist

    dist.barrier()


# ---- MPI -----------------------------------------------------------------------------------------------------


def _world() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _mpi_all_reduce(data: Buffer, _result: Buffer, op: str) -> None:
    from mpi4py import MPI

    world = _world()
    world.Allreduce(MPI.IN_PLACE, data.array)
    if op == "avg":
        np.divide(data.array, world.size, out=data.array)


def _mpi_reduce_scatter(data: Buffer, result: Buffer, op: str) -> None:
    world = _world()
    world.Reduce_scatter_block(data.array, result.array)
    if op == "avg":
        np.divide(result.array, world.size, out=result.array)


def _mpi_all_gather(data: Buffer, result: Buffer, _op: str) -> None:
    _world().Allgather(_bytes(data), _bytes(result))


def _mpi_all_to_all(data: Buffer, result: Buffer, _op: str) -> None:
    _world().Alltoall(_bytes(data), _bytes(result))


def _mpi_broadcast(data: Buffer, _result: Buffer, _op: str) -> None:
    _world().Bcast(_bytes(data), 0)


def _mpi_send_recv(data: Buffer, result: Buffer, _op: str) -> None:
    world = _world()
    rank, size = world.rank, world.size
    world.Sendrecv(_bytes(data), (rank + 1) % size, recvbuf=_bytes(result), source=(rank - 1) % size)


def _mpi_barrier(_data: Buffer, _result: Buffer, _op: str) -> None:
    _world().Barrier()


def _bytes(buffer: Buffer) -> Any:
    """What is only moved: MPI knows no bfloat16."""
    return buffer.array.view("uint8")


BASELINES = {
    "baseline:torch": Baseline(
        "gloo",
        ("float", "half", "bfloat16"),
        {
            "all_reduce": _torch_all_reduce,
            "reduce_scatter": _torch_reduce_scatter,
            "all_gather": _torch_all_gather,
            "all_to_all": _torch_all_to_all,
            "broadcast": _torch_broadcast,
            "send_recv": _torch_send_recv,
            "barrier": _torch_barrier,
        },
    ),
    "baseline:mpi": Baseline(
        "mpi",
        ("float",),
        {
            "all_reduce": _mpi_all_reduce,
            "reduce_scatter": _mpi_reduce_scatter,
            "all_gather": _mpi_all_gather,
            "all_to_all": _mpi_all_to_all,
            "broadcast": _mpi_broadcast,
            "send_recv": _mpi_send_recv,
            "barrier": _mpi_barrier,
        },
    ),
}
