"""What a call costs beside its work: an all_reduce of four floats by one rank, from C++, C and Python in turn.

Calls are 50 us apart, in all ways. Needs the native program of benchmarks/native/call_cost.cpp (``cmake --build
--preset cpu``).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

import gcomm
from gcomm.cli.present import write_json

_APART_NS = 50_000


@click.command()
@click.option("--json", "json_file", required=True)
@click.option("--native", default="build/cpu/tests/native/call_cost", show_default=True)
@click.option("--rounds", default=15, show_default=True)
@click.option("--calls", default=2000, show_default=True, help="In each round, by each way.")
def main(json_file: str, native: str, rounds: int, calls: int) -> None:
    """Measure and write a row for each way to call."""
    (comm,) = gcomm.Communicator.local(1)
    ways = _python_ways(comm)
    times: dict[str, list[float]] = {name: [] for name in ("engine", "c", *ways)}
    for way in ways.values():
        _median_us(way, calls)  # warm
    for _ in range(rounds):
        output = subprocess.run([native, "1", str(calls)], capture_output=True, text=True, check=True).stdout
        found = json.loads(output)
        times["engine"] += found["engine_us"]
        times["c"] += found["c_us"]
        for name, way in ways.items():
            times[name].append(_median_us(way, calls))
    comm.close()
    # What each way is built on.
    below = {"engine": "engine", "c": "engine", **dict.fromkeys(ways, "c")}
    rows = [
        {
            "caller": name,
            "call_us": statistics.median(each),
            "over": below[name],
            "over_us": statistics.median(a - b for a, b in zip(each, times[below[name]], strict=True)),
        }
        for name, each in times.items()
    ]
    write_json(rows, json_file)


def _python_ways(comm: gcomm.Communicator) -> dict[str, Callable[[], Any]]:
    array = np.arange(4, dtype=np.float32)
    ways: dict[str, Callable[[], Any]] = {"numpy": lambda: gcomm.all_reduce(array, group=comm, codec=None)}
    try:
        import torch
    except ImportError:
        return ways
    tensor = torch.arange(4.0)
    return {**ways, "torch": lambda: gcomm.all_reduce(tensor, group=comm, codec=None)}


def _median_us(call: Callable[[], Any], calls: int) -> float:
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns() + _APART_NS
        while (before := time.perf_counter_ns()) < start:
            pass
        call()
        times.append(time.perf_counter_ns() - before)
    return statistics.median(times) / 1e3


if __name__ == "__main__":
    main()
