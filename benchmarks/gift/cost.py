"""What gift's arithmetic costs beside the wire: ``python -m benchmarks.gift.cost --json rows.json``.

64 MiB of fp32 in four matrices of 1024 x 4096, one coalesced all_reduce, direct and with gift at rank 8. The
codecs take turns; a turn is one refresh period, so that each holds the refreshes that fall to it. Under
``tools/netlab.sh run`` the ranks are its namespaces, otherwise two processes on the loopback interface.
"""

from __future__ import annotations

import time

import click
import numpy as np
from numpy.typing import NDArray

import gcomm
from gcomm.cli.launch import Emit, Message, Ranks, run_ranks
from gcomm.cli.present import write_json
from gcomm.cli.world import World, under_launcher

MATRICES, ROWS, COLUMNS = 4, 1024, 4096
DIRECT = "nvfp4"
MODES = ("rows", "scale", "split")
CALLS = 10  # a refresh period


def codec_text(mode: str) -> str:
    """Gift's codec in ``mode``."""
    return f"gift+{DIRECT}:mode={mode}:rank=8:refresh={CALLS}"


def matrices(rank: int) -> list[NDArray[np.float32]]:
    """Gradients like real ones: a falling spectrum that all ranks share, and noise of each rank's own."""
    shared, own = np.random.default_rng(0), np.random.default_rng(rank + 1)
    found = []
    for _ in range(MATRICES):
        left = shared.standard_normal((ROWS, 32), np.float32)
        right = shared.standard_normal((32, COLUMNS), np.float32)
        left *= (0.8 ** np.arange(32)).astype(np.float32)
        found.append(left @ right + 0.1 * own.standard_normal((ROWS, COLUMNS), np.float32))
    return found


def measure(world: World, config: Message, emit: Emit) -> None:
    """Emit a row for each codec: seconds of a call, the best turn's median and the best turn's mean.

    Processor time, of the busier rank, hardly depends on what else the machine does.
    """
    tensors, keys = matrices(world.rank), [f"matrix{i}" for i in range(MATRICES)]
    texts = [DIRECT, *(codec_text(mode) for mode in MODES)]
    codecs = [gcomm.codec(text) for text in texts]
    seconds = np.zeros((len(texts), config["turns"] + 1, CALLS))
    turns = np.zeros((len(texts), config["turns"] + 1))
    processor = np.zeros((len(texts), config["turns"] + 1))
    wire = [0] * len(texts)
    stages = np.zeros((len(texts), 3))
    for turn in range(config["turns"] + 1):  # the first warms up
        for number, codec in enumerate(codecs):
            world.barrier()
            begin, busy = time.perf_counter(), time.process_time()
            for call in range(CALLS):
                work = gcomm.all_reduce_coalesced(
                    tensors, "avg", world.comm, codec=codec, keys=keys, async_op=True
                )
                assert work is not None
                work.wait()
                seconds[number, turn, call] = work.stats["total_s"]
                wire[number] = int(work.stats["wire_bytes"])
                stages[number] = [work.stats[key] for key in ("encode_s", "comm_s", "decode_s")]
            turns[number, turn] = (time.perf_counter() - begin) / CALLS
            processor[number, turn] = (time.process_time() - busy) / CALLS
    slowest = world.gather(seconds).max(axis=0)[:, 1:]
    mean = world.gather(turns).max(axis=0)[:, 1:]
    busiest = world.gather(processor).max(axis=0)[:, 1:]
    for number, text in enumerate(texts):
        emit(
            {
                "row": {
                    "codec": text,
                    "call_ms": float(np.median(slowest[number], axis=1).min()) * 1e3,
                    "mean_ms": float(mean[number].min()) * 1e3,
                    "processor_ms": float(busiest[number].min()) * 1e3,
                    "each_turn_mean_ms": [round(1e3 * value, 2) for value in mean[number]],
                    "last_call_stages_ms": [round(1e3 * value, 2) for value in stages[number]],
                    "wire_bytes": wire[number],
                }
            }
        )


@click.command()
@click.option("--turns", type=click.IntRange(min=1), default=4, show_default=True, help="Of each codec.")
@click.option("--json", "json_file", required=True)
def main(turns: int, json_file: str) -> None:
    """Measure and write the rows."""
    rows: list[Message] = []
    run_ranks(
        "benchmarks.gift.cost:measure",
        {"turns": turns},
        Ranks("tcp", 0 if under_launcher() else 2),
        lambda message: rows.append(message["row"]),
    )
    if rows:
        write_json(rows, json_file)
    for row in rows:
        click.echo(
            f"{row['codec']:42} call {row['call_ms']:7.1f} ms ({row['call_ms'] / rows[0]['call_ms']:.2f} x)   "
            f"with its refreshes {row['mean_ms']:7.1f} ms ({row['mean_ms'] / rows[0]['mean_ms']:.2f} x)   "
            f"processor {row['processor_ms']:6.1f} ms   "
            f"{row['wire_bytes'] / 2**20:.2f} MiB"
        )


if __name__ == "__main__":
    main()
