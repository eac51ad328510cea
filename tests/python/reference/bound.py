"""How far one quantisation may move each element: bounds from the formats' definitions, in float64.

Nothing here runs an encoder. A scale is only known to lie within its rounding of absmax / q_max, and an element
within half a step of its value, so the bounds hold for every correct implementation and are tight to about the
rounding of the scale. Elements of a block that may not survive (a NaN or an Inf in it) get an infinite bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .encoder import to_f32
from .philox import tile_signs
from .replay import dtype_of, shards
from .spec import Q_MAX, SCALED_BF16, UNSCALED, Spec, parse

F64 = NDArray[np.float64]

FLT_MAX = float(np.finfo(np.float32).max)
TINY = 2.0**-126
# Two or three binary32 roundings on the way (reciprocal, product, product), relative to the value.
ROUNDINGS = 2.0**-21

# mantissa bits, smallest normal exponent, largest finite value
_FLOATS = {
    "bf16": (7, -126, FLT_MAX),
    "fp16": (10, -14, 65504.0),
    "fp8_e4m3": (3, -6, 448.0),
    "fp8_e5m2": (2, -14, 57344.0),
    "mxfp8": (3, -6, 448.0),
    "mxfp4": (1, 0, 6.0),
    "nvfp4": (1, 0, 6.0),
}
_BF16_MAX = float.fromhex("0x1.fep127")


def _blocks(x: F64, block: int) -> F64:
    return np.concatenate([x, np.zeros(-len(x) % block)]).reshape(-1, block)


def _finite_max(x: F64) -> F64:
    return np.asarray(np.where(np.isfinite(x), np.abs(x), 0.0).max(axis=1, keepdims=True, initial=0.0))


def _float_step(magnitude: F64, scale: F64 | float, name: str) -> F64:
    """A whole step of scale * element at this magnitude, at most."""
    mantissa_bits, e_min, _ = _FLOATS[name]
    return np.maximum(magnitude * 2.0**-mantissa_bits, scale * 2.0 ** (e_min - mantissa_bits))


def _unscaled(x: F64, name: str, part: float) -> F64:
    if name == "fp32":
        return np.where(np.isfinite(x), 0.0, np.inf)
    largest = _BF16_MAX if name == "bf16" else 65504.0
    out = np.maximum(part * _float_step(np.abs(x), 1.0, name), np.abs(x) - largest)
    return np.where(np.isfinite(x), out, np.inf)


def _bf16_scaled(x: F64, name: str, part: float) -> F64:
    magnitude, q_max = np.abs(x), Q_MAX[name]
    t = _finite_max(x) / q_max
    scale = np.where(t == 0, 0.0, np.maximum(t * (1 + 2.0**-7), TINY))
    if name.startswith("fp8"):
        step = _float_step(magnitude, scale, name)
    else:
        step = scale * (2.0 if name == "int2" else 1.0)
    # The largest scale may be a bf16 step below FLT_MAX / q_max; what is beyond it saturates.
    return np.maximum(part * step, magnitude - FLT_MAX * (1 - 2.0**-7))


def _mx(x: F64, name: str, part: float, divisor: float) -> F64:
    magnitude = np.abs(x)
    scale = np.maximum(2 * _finite_max(x) / divisor, TINY)
    # At the top of binary32's range the element saturates early: at 240 of 2^120, at 3 of 2^126.
    top = 240 * 2.0**120 if name == "mxfp8" else 3 * 2.0**126
    return np.maximum(part * _float_step(magnitude, scale, name), magnitude - top)


def _nvfp4(x: F64, part: float, divisor: float) -> F64:
    magnitude = np.abs(x)
    absmax = _finite_max(x)
    tile = np.empty_like(absmax)
    for first in range(0, len(x), 256):
        tile[first : first + 256] = absmax[first : first + 256].max()
    g = np.where(tile == 0, 0.0, np.maximum(tile / 2688, TINY))

    def off(b: F64) -> F64:  # value(sb) * g is b within half a step of e4m3
        return np.maximum(b * 2.0**-4, g * 2.0**-10) * (1 + 2.0**-10)

    b = absmax / divisor
    step = _float_step(magnitude, b + off(b), "nvfp4")
    # An element is cut off at 6 scales. The scale is least where the element is its block's largest; with
    # absmax / 4 it may saturate at 448 g, a sixth of the tile's largest.
    own = magnitude / divisor
    low = np.minimum(own - off(own), magnitude / 6 * (1 - 2.0**-10))
    low = np.where(low < TINY, 0.0, low)
    return np.maximum(part * step, magnitude - 6 * low)


def _format_bound(spec: Spec, x: F64) -> F64:
    """Bound of each element of x (filled up already); grows with every magnitude in x."""
    name = spec.format
    part = 1.0 if spec.stochastic else 0.5
    if name in UNSCALED:
        return _unscaled(x, name, part)
    rows = _blocks(x, spec.block)
    if name in SCALED_BF16:
        out = _bf16_scaled(rows, name, part)
    elif name == "nvfp4":
        out = _nvfp4(rows, part, 6.0)
    else:
        out = _mx(rows, name, part, float(Q_MAX[name]))
    if spec.search and name == "nvfp4":
        out = np.maximum(out, _nvfp4(rows, part, 4.0))
    if spec.search and name == "mxfp4":
        out = np.maximum(out, _mx(rows, name, part, 4.0))
    out = out + np.abs(rows) * ROUNDINGS + 2.0**-149
    finite = np.isfinite(rows)
    survives = finite if name in ("fp8_e4m3", "fp8_e5m2", "mxfp8") else finite.all(axis=1, keepdims=True)
    return np.where(survives, out, np.inf).reshape(-1)[: len(x)]


def _walsh(x: F64) -> F64:
    """Orthonormal Walsh-Hadamard transform of each row."""
    matrix = np.ones((1, 1))
    while len(matrix) < x.shape[1]:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(x @ matrix / np.sqrt(x.shape[1]))


def bound(text: str, x: NDArray[np.generic], slack: F64 | float = 0.0) -> F64:
    """Largest permitted |decoded - x| of each element after one encode and decode.

    Parameters
    ----------
    text : str
        Codec text.
    x : array, shape (n,)
        The values encoded, any float dtype.
    slack : float64 array, shape (n,), optional
        How far the encoder's real input may be from x (a sum of values that were quantised before): the bound
        holds against x then.

    Returns
    -------
    float64 array, shape (n,)
        Infinite where the value, or its block's, need not survive.
    """
    spec = parse(text)
    value = x.astype(np.float64)
    if spec.nonfinite == "zero":
        value = np.where(np.isfinite(value), value, 0.0)
    wiggle = np.broadcast_to(np.asarray(slack, np.float64), value.shape)
    with np.errstate(all="ignore"):
        if not spec.hadamard:
            return np.asarray(_format_bound(spec, np.abs(value) + wiggle) + wiggle)
        size = spec.hadamard
        rows, loose = _blocks(value, size), _blocks(wiggle, size)
        signs = np.where(np.resize(tile_signs(spec.seed), rows.shape), -1.0, 1.0)
        # How much binary32's additions may add, on the way there and back.
        total = (np.abs(rows) + loose).sum(axis=1, keepdims=True)
        arithmetic = (np.log2(size) + 2) * 2.0**-24 * total + 2.0**-149
        spread = np.sqrt((loose**2).sum(axis=1, keepdims=True))
        coefficients = np.abs(_walsh(rows * signs)) + spread + arithmetic
        each = _format_bound(spec, coefficients.reshape(-1)).reshape(rows.shape)
        # The inverse is orthonormal with entries of 1 / sqrt(size).
        out = (each + 2 * arithmetic).sum(axis=1, keepdims=True) / np.sqrt(size) + arithmetic
        return np.asarray(np.broadcast_to(out, rows.shape).reshape(-1)[: len(value)] + wiggle)


def rank_sum_bound(inputs: Sequence[NDArray[np.generic]], each: Sequence[F64], op: str) -> tuple[F64, F64]:
    """The exact sum (or average) over ranks in float64, and how far binary32's may be off it.

    each[p] is how far rank p's values may be from its input before they are summed.
    """
    values = [to_f32(x).astype(np.float64) for x in inputs]
    divisor = len(values) if op == "avg" else 1
    total = np.add.reduce(values) / divisor
    reach = np.add.reduce([np.abs(v) + e for v, e in zip(values, each, strict=True)])
    off = np.add.reduce(list(each)) + len(values) * (reach * 2.0**-24 + 2.0**-149)
    return total, off / divisor + 2.0**-149


def all_reduce_bound(inputs: Sequence[NDArray[np.generic]], text: str, op: str = "sum") -> tuple[F64, F64]:
    """What an all_reduce through the codec should come to, and how far each element may be off.

    Parameters
    ----------
    inputs : sequence of arrays, shape (n,)
        One a rank: float32, float16 or uint16 (bf16 bits).
    text, op : str
        Codec text, and "sum" or "avg"; the direct path.

    Returns
    -------
    (float64 array, float64 array), shape (n,)
        The exact result, and the bound on each element's distance from it.
    """
    count = len(inputs[0])
    off = [bound(text, to_f32(x)) for x in inputs]
    for owner, shard in enumerate(shards(count, len(inputs))):
        off[owner][shard] = 0.0
    total, slack = rank_sum_bound(inputs, off, op)
    out = bound(text, total, slack)
    dtype = dtype_of(inputs[0])
    if dtype != "float32":
        # One more rounding, into the tensor's dtype.
        out = bound({"float16": "fp16", "bfloat16": "bf16"}[dtype], total, out)
    return total, out
