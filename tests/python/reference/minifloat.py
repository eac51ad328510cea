"""Small floats by brute force: every code's value in a float64 table, the nearest one by comparing distances.

Slow, obvious, and nothing like the bit tricks that it checks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class MiniFloat:
    """A sign-magnitude float: ``values[c]`` is the value of magnitude code c, in float64, increasing."""

    name: str
    values: F64
    e_min: int
    mantissa_bits: int
    sign_bit: int

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return float(self.values[-1])


def _magnitudes(exponent_bits: int, mantissa_bits: int, codes: int) -> F64:
    bias = 2 ** (exponent_bits - 1) - 1
    out = []
    for code in range(codes):
        exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
        if exponent == 0:
            out.append(mantissa * 2.0 ** (1 - bias - mantissa_bits))
        else:
            out.append((2**mantissa_bits + mantissa) * 2.0 ** (exponent - bias - mantissa_bits))
    return np.array(out)


# The number of finite codes: e4m3 ends before S.1111.111, the IEEE-like ones before their last exponent.
E4M3 = MiniFloat("e4m3", _magnitudes(4, 3, 0x7F), -6, 3, 0x80)
E5M2 = MiniFloat("e5m2", _magnitudes(5, 2, 0x7C), -14, 2, 0x80)
E2M1 = MiniFloat("e2m1", _magnitudes(2, 1, 8), 0, 1, 8)
BF16 = MiniFloat("bf16", _magnitudes(8, 7, 0x7F80), -126, 7, 0x8000)
FP16 = MiniFloat("fp16", _magnitudes(5, 10, 0x7C00), -14, 10, 0x8000)


@njit(cache=True)
def _nearest(a: F64, values: F64, out: I64) -> None:
    """All codes are tried where there are few; of many only those around the value (found by halving)."""
    n = len(values)
    for i in range(len(a)):
        low, high = 0, n - 1
        if n > 256:
            while high - low > 2:
                middle = (low + high) // 2
                if values[middle] <= a[i]:
                    low = middle
                else:
                    high = middle
        best = low
        for code in range(low, high + 1):
            distance, shortest = abs(a[i] - values[code]), abs(a[i] - values[best])
            if distance < shortest or (distance == shortest and code % 2 == 0 and best % 2 == 1):
                best = code
        out[i] = best


def nearest(magnitude: NDArray[np.float32], kind: MiniFloat, limit: float) -> I64:
    """Magnitude code of the nearest value, ties to the even code, saturated at limit (one of the values).

    magnitude must hold no NaN; Inf saturates.
    """
    a = np.minimum(magnitude.astype(np.float64), limit)
    out = np.empty(len(a), np.int64)
    _nearest(a, kind.values, out)
    return out


def stochastic(magnitude: NDArray[np.float32], kind: MiniFloat, limit: float, u16: I64) -> I64:
    """Magnitude code by k = floor(a / ulp + u), the floor exact."""
    a = np.minimum(magnitude.astype(np.float64), limit)
    exponent = np.maximum(np.frexp(a)[1] - 1, kind.e_min)
    ulp = np.ldexp(1.0, exponent - kind.mantissa_bits)
    steps = np.floor(a / ulp * 65536.0).astype(np.int64)  # a / ulp < 2^11, exact in float64
    value = np.minimum(((steps + u16) >> 16) * ulp, limit)
    code = np.searchsorted(kind.values, value)
    assert np.array_equal(kind.values[code], value)
    return code
