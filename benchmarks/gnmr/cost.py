"""One ``observe()`` of 1,000 units, from C and from Python, and a norm beside decoding. Prints JSON rows."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import gcomm
from gcomm import _native
from gcomm._arrays import Dtype
from gcomm.gnmr import Controller

UNITS = 1000
STEPS = 1000
ELEMENTS = 1 << 22
REPEATS = 15


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


def norm_row(codec: str) -> dict[str, Any]:
    """A norm of 16 MiB of fp32, and the decoding that made them, in turn, one thread."""
    x = np.random.default_rng(0).standard_normal(ELEMENTS).astype(np.float32)
    made = gcomm.codec(codec)
    data = made.encode(x)
    out = np.empty_like(x)
    decode, norm = [], []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        made.decode(data, out)
        middle = time.perf_counter()
        _native.norm(out.ctypes.data, int(Dtype.float32), ELEMENTS)
        decode.append(middle - begin)
        norm.append(time.perf_counter() - middle)
    return {
        "codec": codec,
        "bytes": 4 * ELEMENTS,
        "decode_us": round(statistics.median(decode) * 1e6, 1),
        "norm_us": round(statistics.median(norm) * 1e6, 1),
    }


def main(program: str = "build/dev/tests/native/gnmr_speed") -> None:
    """Run both; program: the C side, as built with the native tests."""
    rows = []
    if Path(program).exists():
        done = subprocess.run([program, str(UNITS), "32"], capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
    rows.append(python_row())
    rows += [norm_row(codec) for codec in ("nvfp4", "int4", "fp8_e4m3")]
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
