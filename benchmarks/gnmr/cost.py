"""What one ``observe()`` of 1,000 units takes, from C and from Python. Prints JSON rows."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gcomm.gnmr import Controller

UNITS = 1000
STEPS = 1000


def python_row() -> dict[str, Any]:
    """The same norms as benchmarks/native/gnmr_speed.cpp."""
    control = Controller(tau=3.0, tau_delta=2.0, window=32, warmup=10, max_ops=8, lock=20)
    names = [f"unit{i}" for i in range(UNITS)]
    seconds = []
    actions = 0
    for step in range(STEPS):
        spikes = [20.0 if (step * 31 + i) % 10007 == 0 else 0.0 for i in range(UNITS)]
        norms = {name: 1.0 + 0.001 * ((step * 7 + i * 13) % 101) + spikes[i] for i, name in enumerate(names)}
        begin = time.perf_counter()
        acted = control.observe(norms)
        seconds.append(time.perf_counter() - begin)
        actions += len(acted)
    return {
        "caller": "Python",
        "units": UNITS,
        "window": 32,
        "observe_us": round(statistics.median(seconds) * 1e6, 2),
        "actions": actions,
    }


def main(program: str = "build/dev/tests/native/gnmr_speed") -> None:
    """Run both; program: the C side, as built with the native tests."""
    rows = []
    if Path(program).exists():
        done = subprocess.run([program, str(UNITS), "32"], capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
    rows.append(python_row())
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
