"""all_reduce of 64 MiB of fp32 over MPI against MPI_Allreduce on the same processes, in turn; for mpiexec."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import numpy as np
from mpi4py import MPI

import gcomm
from gcomm.cli.present import write_json

COUNT = 16 << 20
CODECS = ("fp8_e4m3", "nvfp4")


@click.command()
@click.option("--turns", default=20, show_default=True)
@click.option("--json", "json_file", required=True)
def main(turns: int, json_file: str) -> None:
    """Measure and write the rows: the median over turns of the slowest rank's time."""
    world = MPI.COMM_WORLD
    comm = gcomm.Communicator.from_mpi(world, "mpi")
    pristine = np.random.default_rng(world.rank).standard_normal(COUNT, np.float32)
    tensor, result = pristine.copy(), np.empty_like(pristine)
    contenders: dict[str, Callable[[], object]] = {
        "baseline:mpi": lambda: world.Allreduce(tensor, result),
        **{codec: lambda codec=codec: comm.all_reduce(tensor, codec=codec) for codec in CODECS},
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-2, turns):
        for name, call in contenders.items():
            np.copyto(tensor, pristine)
            world.Barrier()
            started = time.perf_counter()
            call()
            taken = world.allreduce(time.perf_counter() - started, MPI.MAX)
            if turn >= 0:
                times[name].append(taken)
    comm.close()
    if world.rank == 0:
        rows = [
            {"codec": name, "bytes": 4 * COUNT, "time_us": statistics.median(taken) * 1e6}
            for name, taken in times.items()
        ]
        write_json(rows, json_file)


if __name__ == "__main__":
    main()
