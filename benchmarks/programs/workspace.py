"""Workspace of one all_reduce, as its communicator reports it, against twice the encoded bytes."""

from __future__ import annotations

import click
import numpy as np

import gcomm
from gcomm.cli.launch import Emit, Message, Ranks, run_ranks
from gcomm.cli.present import write_json
from gcomm.cli.world import World

MIB = 1 << 20


def measure(world: World, config: Message, emit: Emit) -> None:
    """Emit the row of one size and codec; the communicator has made no other call."""
    size, codec = config["bytes"], config["codec"]
    gcomm.all_reduce(np.ones(size // 4, np.float32), "sum", world.comm, codec=codec)
    workspace = int(world.comm.stats["workspace_bytes"])
    encoded = gcomm.codec(codec).wire_bytes(size // 4)
    emit(
        {
            "row": {
                "world_size": world.size,
                "codec": codec,
                "bytes": size,
                "encoded_bytes": encoded,
                "workspace_bytes": workspace,
                "excess_mib": (workspace - 2 * encoded) / MIB,
            }
        }
    )


@click.command()
@click.option("--json", "json_file", required=True)
def main(json_file: str) -> None:
    """Measure and write the rows."""
    rows: list[Message] = []
    for nproc in (2, 4):
        for codec in ("fp32", "fp8_e4m3", "nvfp4", "int2"):
            for size in (1 * MIB, 64 * MIB, 256 * MIB):
                run_ranks(
                    "benchmarks.programs.workspace:measure",
                    {"bytes": size, "codec": codec},
                    Ranks("tcp", nproc),
                    lambda message: rows.append(message["row"]),
                )
    write_json(rows, json_file)


if __name__ == "__main__":
    main()
