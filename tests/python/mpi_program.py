"""What tests of MPI run under mpiexec: ``python mpi_program.py NAME``. Each rank prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from mpi4py import MPI

import gcomm
from gcomm import Communicator

WORLD = MPI.COMM_WORLD
CODECS = ("fp32", "nvfp4", "hadamard+int8", "int3:rounding=stochastic:seed=5")
COUNTS = (0, 1, 4097, 200_001)


def inputs(rank: int, count: int) -> np.ndarray:
    return np.random.default_rng([rank, count]).standard_normal(count).astype(np.float32)


def verbs(comm: Communicator, spec: str, count: int) -> bytes:
    """The results of every verb on this rank."""
    rank, size = comm.rank, comm.size
    codec = f"{spec}:min_bytes=0"
    reduced = inputs(rank, count)
    comm.all_reduce(reduced, codec=codec, key="a")
    shard = np.empty(count, np.float32)
    comm.reduce_scatter_tensor(shard, inputs(rank, count * size), codec=codec, key="b")
    gathered = np.empty(count * size, np.float32)
    comm.all_gather_into_tensor(gathered, inputs(rank, count), codec=codec, key="c")
    exchanged = np.empty(count * size, np.float32)
    comm.all_to_all_single(exchanged, inputs(rank, count * size), codec=codec, key="d")
    sent = inputs(size - 1, count) if rank == size - 1 else np.empty(count, np.float32)
    comm.broadcast(sent, size - 1, codec=codec, key="e")
    received = np.zeros(count, np.float32)
    if size > 1:
        work = comm.send(inputs(rank, count), (rank + 1) % size, codec=codec, key="f", async_op=True)
        comm.recv(received, (rank - 1) % size, codec=codec, key="f")
        assert work is not None
        work.wait()
    comm.barrier()
    return b"".join(x.tobytes() for x in (reduced, shard, gathered, exchanged, sent, received))


def all_counts(comm: Communicator, spec: str) -> list[bytes]:
    return [verbs(comm, spec, count) for count in COUNTS]


def in_threads(size: int, spec: str) -> list[list[bytes]]:
    """The same over ranks that are threads, by rank."""
    comms = Communicator.local(size)
    with ThreadPoolExecutor(size) as threads:
        results = list(threads.map(lambda comm: all_counts(comm, spec), comms))
    for comm in comms:
        comm.close()
    return results


def same_bits(transport: str) -> Any:
    """Over MPI and over threads, in the world and in halves of it."""
    half = WORLD.Split(WORLD.rank % 2)
    for mpi in (WORLD, half):
        with Communicator.from_mpi(mpi, transport) as comm:
            assert (comm.rank, comm.size, comm.transport) == (mpi.rank, mpi.size, transport)
            for spec in CODECS:
                assert all_counts(comm, spec) == in_threads(mpi.size, spec)[mpi.rank], spec
    # As a verb's group; ranks are counted within it.
    x = np.full(5, WORLD.rank, np.float32)
    gcomm.all_reduce(x, codec=None, group=half)
    assert x.tolist() == [half.allreduce(WORLD.rank)] * 5
    gcomm.broadcast(x := np.full(5, WORLD.rank, np.float32), 0, group=half)
    assert x.tolist() == [WORLD.rank % 2] * 5
    return "done"


def faults(transport: str) -> Any:
    """Disagreements leave a communicator whole; deadlines and aborts close it on all ranks. MPI goes on."""
    said = []
    with Communicator.from_mpi(WORLD, transport) as comm:
        try:
            comm.all_reduce(np.ones(10 + WORLD.rank, np.float32))
        except gcomm.errors.MismatchError as error:
            said.append(str(error))
        x = np.ones(3, np.float32)
        comm.all_reduce(x)
        assert x.tolist() == [WORLD.size] * 3
    with Communicator.from_mpi(WORLD, transport) as comm:
        comm.barrier()
        if WORLD.rank == 1:
            time.sleep(1.5)
        try:
            comm.all_reduce(np.ones(100_000, np.float32), timeout=0.5)
        except gcomm.errors.TimeoutError as error:
            said.append((str(error), error.rank))
    with Communicator.from_mpi(WORLD, transport) as comm:
        comm.barrier()
        try:
            if WORLD.rank == 0:
                time.sleep(0.3)
                comm.abort("stopped by hand")
            comm.all_reduce(np.ones(100_000, np.float32))
        except (gcomm.errors.AbortedError, gcomm.errors.ClosedError) as error:
            said.append(str(error))
    comm = Communicator.from_mpi(WORLD, transport)
    if WORLD.rank == 0:
        comm.close()
    else:
        try:
            comm.all_reduce(np.ones(100_000, np.float32), timeout=3)
        except (gcomm.errors.PeerLostError, gcomm.errors.TimeoutError) as error:
            said.append((type(error).__name__, error.rank))
        comm.close()
    assert WORLD.allreduce(1) == WORLD.size
    return said


def dies(transport: str) -> Any:
    """Rank 1 ends without a word; mpiexec is told to leave the others alone."""
    comm = Communicator.from_mpi(WORLD, transport)
    comm.barrier()
    if WORLD.rank == 1:
        os._exit(0)
    started = time.monotonic()
    try:
        comm.all_reduce(np.ones(100_000, np.float32), timeout=1.0)
    except gcomm.errors.GcommError as error:
        print(json.dumps([type(error).__name__, error.rank, time.monotonic() - started]), flush=True)
    os._exit(0)


def mpi_aborts() -> Any:
    """MPI_Abort ends every rank, also one that waits in a collective of gcomm's."""
    comm = Communicator.from_mpi(WORLD)
    comm.barrier()
    if WORLD.rank == 1:
        time.sleep(0.2)
        WORLD.Abort(7)
    comm.all_reduce(np.ones(100_000, np.float32))


def without_closing(transport: str) -> Any:
    """Ends as a program does that forgets."""
    comm = Communicator.from_mpi(WORLD, transport)
    comm.all_reduce(np.ones(100_000, np.float32))
    return "done"


def refusals() -> Any:
    said = {}
    for name, call in {
        "null": lambda: Communicator.from_mpi(MPI.COMM_NULL),
        "kind": lambda: Communicator.from_mpi("world"),
        "transport": lambda: Communicator.from_mpi(WORLD, "tcp"),
        "freed": lambda: gcomm.all_reduce(np.ones(3, np.float32), group=MPI.COMM_NULL),
    }.items():
        try:
            call()
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


if __name__ == "__main__":
    # One write: mpiexec mixes what the ranks say.
    os.write(1, (json.dumps(globals()[sys.argv[1]](*sys.argv[2:])) + "\n").encode())
