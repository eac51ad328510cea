"""NumPy over MPI: the same sum by MPI and by gcomm, and what each costs.

mpiexec -n 4 python examples/mpi_numpy.py
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

import gcomm

world = MPI.COMM_WORLD
gradient = np.random.default_rng(world.rank).standard_normal(4_000_000, np.float32)

exact = np.empty_like(gradient)
started = time.perf_counter()
world.Allreduce(gradient, exact)
by_mpi = time.perf_counter() - started

# An mpi4py communicator is a group like any other; its gcomm communicator is made when it is first used.
gcomm.barrier(world)
started = time.perf_counter()
gcomm.all_reduce(gradient, group=world, codec="nvfp4", key="gradient")
by_gcomm = time.perf_counter() - started

error = np.linalg.norm(gradient - exact) / np.linalg.norm(exact)
if world.rank == 0:
    print(f"{world.size} ranks: MPI {1e3 * by_mpi:.1f} ms, nvfp4 {1e3 * by_gcomm:.1f} ms, error {error:.3f}")
