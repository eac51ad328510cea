"""What the rows of the gift benchmarks say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]

EXACT = "fp32"
# Two-sided 95 % points of Student's t, by degrees of freedom.
STUDENT = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


# ---- fidelity -----------------------------------------------------------------------------------------------


def over(rows: Sequence[Row], error: str, codec: str, direct: str = "nvfp4") -> float:
    """Mean error of ``codec``, over matrices and steps, as a part of that of ``direct``."""
    ours, others = ([row[error] for row in rows if row["codec"] == name] for name in (codec, direct))
    return float(sum(ours) / sum(others))


def bits(rows: Sequence[Row], codec: str) -> float:
    """Mean wire bits an element."""
    found = [row["bits"] for row in rows if row["codec"] == codec]
    return float(sum(found) / len(found))


# ---- training, paired by seed -------------------------------------------------------------------------------


def losses_of(rows: Sequence[Row], optimiser: str, codec: str) -> dict[int, float]:
    """Evaluation losses by seed."""
    return {
        row["seed"]: row["eval_loss"] for row in rows if (row["optimiser"], row["codec"]) == (optimiser, codec)
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of its 95 % confidence interval, by Student's t; half is NaN of a single value."""
    count = len(values)
    half = STUDENT[count - 1] * float(np.std(values, ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return float(np.mean(values)), half


def closed(rows: Sequence[Row], optimiser: str, direct: str, codec: str) -> float:
    """The part of the gap between ``direct`` and fp32 that ``codec`` closes, of the means over common seeds."""
    exact, worse, ours = (losses_of(rows, optimiser, name) for name in (EXACT, direct, codec))
    seeds = sorted(exact.keys() & worse.keys() & ours.keys())
    gap = sum(worse[seed] - exact[seed] for seed in seeds)
    return sum(worse[seed] - ours[seed] for seed in seeds) / gap


def over_exact(rows: Sequence[Row], optimiser: str, codec: str) -> float:
    """Per cent that ``codec``'s mean loss lies above fp32's, paired by seed."""
    exact, ours = losses_of(rows, optimiser, EXACT), losses_of(rows, optimiser, codec)
    return float(np.mean([100 * (ours[seed] / exact[seed] - 1) for seed in exact.keys() & ours.keys()]))


def summary(rows: Sequence[Row], optimiser: str) -> list[Row]:
    """A row a codec: mean loss, and paired differences with their 95 % intervals."""
    exact = losses_of(rows, optimiser, EXACT)
    found = []
    for codec in dict.fromkeys(row["codec"] for row in rows if row["optimiser"] == optimiser):
        ours = losses_of(rows, optimiser, codec)
        base = codec.removeprefix("gift+").split(":")[0]
        direct = losses_of(rows, optimiser, base)
        over, over_half = interval([100 * (ours[s] / exact[s] - 1) for s in sorted(ours.keys() & exact.keys())])
        row = {
            "optimiser": optimiser,
            "codec": codec,
            "seeds": len(ours),
            "eval_loss": float(np.mean(list(ours.values()))),
            "over_fp32_percent": over,
            "over_fp32_half": over_half,
            "wire_bytes_per_step": max(r["wire_bytes_per_step"] for r in rows if r["codec"] == codec),
        }
        if base != codec:
            common = sorted(ours.keys() & direct.keys() & exact.keys())
            less, less_half = interval([100 * (direct[s] - ours[s]) / exact[s] for s in common])
            row |= {
                "under_direct_percent": less,
                "under_direct_half": less_half,
                "closed": closed(rows, optimiser, base, codec),
            }
        found.append(row)
    return found
