"""The ranks that a command runs on: a communicator, and what they tell each other beside the measured calls."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

import gcomm

TRANSPORTS = ("tcp", "torch", "local", "mpi", "nccl")


@dataclass(frozen=True)
class World:
    """One rank's view.

    Attributes
    ----------
    comm:
        The communicator that is measured.
    has_torch_group:
        Whether torch's default process group spans the same ranks (for baselines).
    """

    comm: gcomm.Communicator
    has_torch_group: bool

    @property
    def rank(self) -> int:
        """Number of the rank."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.comm.size

    @property
    def media(self) -> str:
        """What carries this rank's bytes to its peers, such as "shm", or "shm+tcp" where that differs."""
        peers = (peer for peer in range(self.size) if peer != self.rank)
        return "+".join(sorted({self.comm.medium(peer) for peer in peers}))

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        gcomm.barrier(self.comm)

    def gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Every rank's ``values`` (same shape and dtype everywhere) as one array (ranks, \\*shape)."""
        mine = np.ascontiguousarray(values)
        everyone = np.empty((self.size, *mine.shape), mine.dtype)
        gcomm.all_gather_into_tensor(
            everyone.reshape(-1).view(np.uint8), mine.reshape(-1).view(np.uint8), self.comm
        )
        return everyone


def under_launcher() -> bool:
    """Whether a launcher such as torchrun has made this process one rank of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def under_mpiexec() -> bool:
    """Whether MPICH's or Open MPI's launcher has made this process one rank of several."""
    return _mpi_size() is not None


def launched_size() -> int:
    """How many ranks a launcher has started."""
    return int(_mpi_size() or os.environ["WORLD_SIZE"])


def launched_rank() -> int:
    """Which of them this process is."""
    of_mpi = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
    return int(of_mpi or os.environ["RANK"])


def _mpi_size() -> str | None:
    return os.environ.get("PMI_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE")


def have(package: str) -> bool:
    """Whether a package can be imported (not whether it works)."""
    return find_spec(package) is not None


def free_port() -> int:
    """A TCP port of this host that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def open_world(transport: str, *, torch_group: bool) -> Iterator[World]:
    """The rank that this process is in its launcher's world.

    That is MPI's, or the one that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe.

    Parameters
    ----------
    transport:
        ``"tcp"``, ``"torch"`` or ``"mpi"``.
    torch_group:
        Make torch's default group too (gloo). ``"torch"`` always does.
    """
    torch_group = torch_group or transport == "torch"
    if transport != "mpi" and under_mpiexec():
        _tell_others_of_mpi()
    if transport == "mpi":
        from mpi4py import MPI

        comm = gcomm.Communicator.from_mpi(MPI.COMM_WORLD)
    elif torch_group:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        comm = gcomm.Communicator.from_torch(None, transport=transport)
    else:
        comm = gcomm.Communicator.from_env()
    try:
        yield World(comm, torch_group)
    except BaseException as error:
        comm.abort(f"rank {comm.rank}: {type(error).__name__}: {error}")
        raise
    else:
        comm.close()
        if torch_group:
            dist.destroy_process_group()


def _tell_others_of_mpi() -> None:
    """Set what torchrun would have set, for libraries that know nothing of MPI's launcher."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    place = None
    if world.rank == 0:
        place = (socket.gethostname(), str(free_port()))
    address, port = world.bcast(place)
    if len(set(world.allgather(socket.gethostname()))) == 1:
        address = "127.0.0.1"
    os.environ.update(RANK=str(world.rank), WORLD_SIZE=str(world.size), MASTER_ADDR=address, MASTER_PORT=port)
