"""Resident memory of each rank over many calls."""

from __future__ import annotations

import os
from pathlib import Path

import click
import numpy as np

import gcomm
from gcomm.cli.launch import Emit, Message, Ranks, run_ranks
from gcomm.cli.present import write_json
from gcomm.cli.world import World

CALLS = 10_000
EVERY = 1_000
SIZES = (1, 1000, 20_011, 262_144)
CODECS = (None, "fp8_e4m3", "nvfp4", "hadamard+int4", "int8:ef=1")


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(world: World, config: Message, emit: Emit) -> None:
    """Emit one row: the memory after every thousandth call, the largest of all ranks."""
    tensors = {size: np.ones(size, np.float32) for size in SIZES}
    gathered = {size: np.empty(size * world.size, np.float32) for size in SIZES}
    after: list[int] = []
    for number in range(config["calls"]):
        size, codec = SIZES[number % len(SIZES)], CODECS[number % len(CODECS)]
        if number % 3 == 2:
            plain = None if codec is None or "ef=1" in codec else codec
            gcomm.all_gather_into_tensor(gathered[size], tensors[size], world.comm, codec=plain)
        else:
            gcomm.all_reduce(tensors[size], "avg", world.comm, codec=codec, key=f"key {size}")
        if (number + 1) % config["every"] == 0:
            after.append(resident_bytes())
    largest = [int(value) for value in world.gather(np.array(after)).max(axis=0)]
    growth = world.gather(np.array([(after[-1] - after[0]) / 2**20])).max()
    emit(
        {
            "row": {
                "calls": config["calls"],
                "every": config["every"],
                "resident": largest,
                "growth_mib": float(growth),
            }
        }
    )


@click.command()
@click.option("--json", "json_file", required=True)
@click.option("--calls", default=CALLS)
@click.option("--every", default=EVERY)
def main(json_file: str, calls: int, every: int) -> None:
    """Measure and write the rows."""
    rows: list[Message] = []
    run_ranks(
        "benchmarks.programs.memory:measure",
        {"calls": calls, "every": every},
        Ranks("tcp", 2),
        lambda message: rows.append(message["row"]),
    )
    write_json(rows, json_file)


if __name__ == "__main__":
    main()
