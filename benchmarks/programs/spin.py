"""Does a busy Python thread slow an exchange? Quiet and spinning iterations alternate.

The time of an exchange is the native one, from the call to its completion. A spinning thread also delays the
Python code that makes the call, so a rank may come late and let its peer wait: the shorter of the two ranks'
times is the exchange itself.
"""

from __future__ import annotations

import statistics
import threading

import click
import numpy as np

import gcomm
from gcomm.cli.launch import Emit, Message, Ranks, run_ranks
from gcomm.cli.present import write_json
from gcomm.cli.world import World

SIZES = (64 << 10, 16 << 20)
ITERATIONS = 60


class Spinner:
    """A thread that computes in pure Python while it is switched on, and holds the GIL as such threads do."""

    def __init__(self) -> None:
        self._on = threading.Event()
        self._count = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._on.wait()
            while self._on.is_set():
                for _ in range(1000):
                    self._count += 1

    def switch(self, *, on: bool) -> None:
        """Start or stop spinning."""
        if on:
            self._on.set()
        else:
            self._on.clear()


def measure(world: World, config: Message, emit: Emit) -> None:
    """Emit a row for each size, with a spinning thread in rank 0, and in every rank."""
    spinner = Spinner()
    for size in config["sizes"]:
        tensor = np.random.default_rng(world.rank).standard_normal(size // 4, np.float32)
        for spinners in (1, world.size):
            times: dict[bool, list[float]] = {False: [], True: []}
            for iteration in range(-5, config["iterations"]):
                for spinning in (False, True):
                    spinner.switch(on=spinning and world.rank < spinners)
                    times[spinning].append(_exchange(world, tensor))
                    spinner.switch(on=False)
                if iteration < 0:
                    times = {False: [], True: []}
            quiet, busy = (
                float(statistics.median(world.gather(np.array(times[spinning])).min(axis=0))) * 1e6
                for spinning in (False, True)
            )
            row = {"bytes": size, "spinners": spinners, "quiet_us": quiet, "spinning_us": busy}
            emit({"row": {**row, "slowdown": busy / quiet}})


def _exchange(world: World, tensor: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    world.barrier()
    work = gcomm.all_reduce(tensor, "avg", world.comm, codec="fp8_e4m3", async_op=True)
    assert work is not None
    work.wait()
    return float(work.stats["total_s"])


@click.command()
@click.option("--json", "json_file", required=True)
def main(json_file: str) -> None:
    """Measure and write the rows."""
    rows: list[Message] = []
    run_ranks(
        "benchmarks.programs.spin:measure",
        {"sizes": SIZES, "iterations": ITERATIONS},
        Ranks("tcp", 2),
        lambda message: rows.append(message["row"]),
    )
    write_json(rows, json_file)


if __name__ == "__main__":
    main()
