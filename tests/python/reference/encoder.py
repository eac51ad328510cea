"""The reference encoder: docs/wire-format.md, sections 1 and 2, in float32 and with brute-force rounding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import decoder, minifloat, philox
from .packing import INT_LAYOUT, pack_bytes, pack_pairs
from .spec import Q_MAX, SCALED_BF16, UNSCALED, Spec, parse

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

TILE = 4096
FLT_MAX = float(np.finfo(np.float32).max)
TINY = 2.0**-126
NAN_SCALE = 0x7FC0


def _f32(value: float) -> np.float32:
    return np.float32(value)


def finite_absmax(x: F32) -> F32:
    """Largest finite magnitude of each row, 0 if it has none."""
    return np.where(np.isfinite(x), np.abs(x), _f32(0)).max(axis=1, initial=0).astype(np.float32)


def smallest_bf16_at_least(t: F32) -> F32:
    """The scale's rounding, by looking it up among all bf16 values."""
    table = minifloat.BF16.values
    return table[np.searchsorted(table, t.astype(np.float64))].astype(np.float32)


def largest_scale(q_max: int) -> float:
    """s_max: the largest bf16 that times q_max stays finite in binary32."""
    table = minifloat.BF16.values
    return float(table[table * q_max <= FLT_MAX][-1])


def bf16_scales(absmax: F32, q_max: int) -> F32:
    """Section 1.3."""
    s = smallest_bf16_at_least(absmax / _f32(q_max))
    s = np.minimum(np.maximum(s, _f32(TINY)), _f32(largest_scale(q_max)))
    return np.where(absmax == 0, _f32(0), s).astype(np.float32)


def reciprocal(s: F32) -> F32:
    """1 / s, and 0 for 0."""
    return np.where(s == 0, _f32(0), _f32(1) / s).astype(np.float32)


def bytes_of_bf16(s: F32) -> U8:
    """Two bytes a block of a scale that is a bf16 already."""
    return (s.view(np.uint32) >> 16).astype("<u2").reshape(-1, 1).view(np.uint8)


def float_codes(y: F32, kind: minifloat.MiniFloat, u16: I64 | None, limit: F32 | float | None = None) -> I64:
    """Sign and magnitude codes, saturated at limit (a row's own, or the largest value); NaN gives 0."""
    limits = np.broadcast_to(kind.largest if limit is None else np.asarray(limit, np.float64), y.shape)
    magnitude = np.where(np.isnan(y), _f32(0), np.abs(y))
    codes = np.empty(y.shape, np.int64)
    for one in np.unique(limits):
        here = limits == one
        if u16 is None:
            codes[here] = minifloat.nearest(magnitude[here], kind, float(one))
        else:
            codes[here] = minifloat.stochastic(magnitude[here], kind, float(one), u16[here])
    return codes | np.where(np.signbit(y), kind.sign_bit, 0)


# ---- blocks: (blocks, elements a block) -> (scale bytes, code bytes) ----------------------------------------


def fp8_codes(x: F32, y: F32, kind: minifloat.MiniFloat, u16: I64 | None, limit: F32 | None = None) -> I64:
    """Codes with the format's own word for what is not finite."""
    codes = float_codes(y, kind, u16, limit)
    if kind is minifloat.E5M2:
        codes[np.isinf(x)] = np.where(np.signbit(x[np.isinf(x)]), 0xFC, 0x7C)
        codes[np.isnan(x)] = 0x7F
    else:
        codes[~np.isfinite(x)] = 0x7F
    return codes


def encode_bf16_scaled(name: str, x: F32, u16: I64 | None) -> tuple[U8, U8]:
    """fp8 and int."""
    q_max = Q_MAX[name]
    absmax = finite_absmax(x)
    s = bf16_scales(absmax, q_max)
    if name == "fp8_e5m2":
        s[(absmax == 0) & np.isinf(x).any(axis=1)] = TINY
    y = x * reciprocal(s)[:, None]
    if name.startswith("fp8"):
        kind = minifloat.E4M3 if name == "fp8_e4m3" else minifloat.E5M2
        return bytes_of_bf16(s), pack_bytes(fp8_codes(x, y, kind, u16))
    u = None if u16 is None else (u16 / 65536).astype(np.float32)
    marked = ~np.isfinite(x).all(axis=1)
    y[marked] = 0
    if name == "int2":
        shifted = y * _f32(0.5) + _f32(2) if u is None else (y + _f32(3)) * _f32(0.5) + u
        q = np.clip(np.floor(shifted) if u is not None else np.floor(y * _f32(0.5)) + _f32(2), 0, 3)
    else:
        q = np.clip(np.rint(y) if u is None else np.floor(y + u), -q_max, q_max)
    bias, pack = INT_LAYOUT[name]
    codes = pack(q.astype(np.int64) + bias)
    scales = bytes_of_bf16(s)
    scales[marked] = [NAN_SCALE & 255, NAN_SCALE >> 8]
    codes[marked] = 0
    return scales, codes


def encode_e8m0(name: str, x: F32, u16: I64 | None, divisor: int) -> tuple[U8, U8]:
    """mxfp8 and mxfp4, with the scale from absmax / divisor."""
    t = (finite_absmax(x) / _f32(divisor)).astype(np.float64)
    fraction, exponent = np.frexp(t)  # t = fraction * 2^exponent, fraction in [0.5, 1)
    e = np.maximum(np.where(fraction == 0.5, exponent - 1, exponent), -126)
    e[t == 0] = -126
    y = x * np.ldexp(_f32(1), -e)[:, None]
    kind = minifloat.E4M3 if name == "mxfp8" else minifloat.E2M1
    # The largest element that times 2^e stays finite.
    limit = np.array([kind.values[kind.values * 2.0**k <= FLT_MAX][-1] for k in e]).reshape(-1, 1)
    scales = (e + 127).astype(np.uint8).reshape(-1, 1)
    if name == "mxfp8":
        return scales, pack_bytes(fp8_codes(x, y, kind, u16, limit))
    marked = ~np.isfinite(x).all(axis=1)
    y[marked] = 0
    codes = pack_pairs(float_codes(y, kind, u16, limit))
    scales[marked] = 255
    codes[marked] = 0
    return scales, codes


def tile_scales(x: F32, blocks_a_tile: int) -> F32:
    """nvfp4's g of every block (of its tile)."""
    absmax = finite_absmax(x)
    g = np.empty(len(x), np.float32)
    for first in range(0, len(x), blocks_a_tile):
        tile = absmax[first : first + blocks_a_tile].max()
        value = min(max(tile / _f32(2688), _f32(TINY)), _f32(float.fromhex("0x1.86p116")))
        g[first : first + blocks_a_tile] = value if tile > 0 else 0
    return g


def encode_nvfp4(x: F32, g: F32, u16: I64 | None, divisor: int) -> tuple[U8, U8]:
    """nvfp4's blocks, with the scale from absmax / divisor."""
    b = finite_absmax(x) / _f32(divisor)
    r = np.where(g == 0, _f32(0), b / g).astype(np.float32)
    sb = minifloat.nearest(r, minifloat.E4M3, 448.0)
    s = minifloat.E4M3.values[sb].astype(np.float32) * g
    small = s < TINY
    sb[small] = 0
    s[small] = 0
    y = x * reciprocal(s)[:, None]
    marked = ~np.isfinite(x).all(axis=1)
    y[marked] = 0
    codes = pack_pairs(float_codes(y, minifloat.E2M1, u16))
    sb[marked] = 0x7F
    codes[marked] = 0
    return sb.astype(np.uint8).reshape(-1, 1), codes


def squared_error(x: F32, decoded: F32) -> F32:
    """Section 1.6's sum: eight partial sums, then halves."""
    difference = x - decoded
    square = (difference * difference).reshape(len(x), -1, 8)
    partial = square[:, 0]
    for k in range(1, square.shape[1]):
        partial = partial + square[:, k]
    for width in (4, 2, 1):
        partial = partial[:, :width] + partial[:, width : 2 * width]
    return np.asarray(partial[:, 0], np.float32)


def decode_blocks(name: str, scales: U8, codes: U8, g: F32 | None) -> F32:
    """Values of blocks, by the decoder's tables."""
    scale_of, elements_of = decoder.SCALED[name]
    s = scale_of(scales.reshape(-1))
    if g is not None:
        s = s * g
    return np.asarray(elements_of(codes) * s[:, None], np.float32)


def encode_blocks(spec: Spec, x: F32, g: F32 | None, u16: I64 | None) -> tuple[U8, U8]:
    """One candidate, or the better of two."""
    name = spec.format
    if name in SCALED_BF16:
        return encode_bf16_scaled(name, x, u16)

    def candidate(divisor: int) -> tuple[U8, U8]:
        if g is not None:
            return encode_nvfp4(x, g, u16, divisor)
        return encode_e8m0(name, x, u16, divisor)

    scales, codes = candidate(Q_MAX[name])
    if spec.search and name in ("mxfp4", "nvfp4"):
        other_scales, other_codes = candidate(4)
        plain = squared_error(x, decode_blocks(name, scales, codes, g))
        other = squared_error(x, decode_blocks(name, other_scales, other_codes, g))
        better = np.isfinite(x).all(axis=1) & (other < plain)
        scales[better], codes[better] = other_scales[better], other_codes[better]
    return scales, codes


def encode_unscaled(name: str, x: F32, u16: I64 | None) -> bytes:
    """Section 1.2."""
    if name == "fp32":
        bits = x.view(np.uint32).copy()
        bits[np.isnan(x)] = 0x7FC00000
        return bits.astype("<u4").tobytes()
    kind = minifloat.BF16 if name == "bf16" else minifloat.FP16
    infinity, nan = (0x7F80, 0x7FC0) if name == "bf16" else (0x7C00, 0x7E00)
    codes = float_codes(x, kind, u16)
    codes[np.isinf(x)] = infinity | np.where(np.signbit(x[np.isinf(x)]), kind.sign_bit, 0)
    codes[np.isnan(x)] = nan
    return codes.astype("<u2").tobytes()


# ---- the transform and the whole -----------------------------------------------------------------------------


def hadamard(x: F32, size: int, seed: int) -> F32:
    """Section 2, forward, on whole groups that begin at a tile."""
    v = np.where(np.resize(philox.tile_signs(seed), len(x)), -x, x).astype(np.float32).reshape(-1, size)
    stride = 1
    while stride < size:
        first = np.flatnonzero(np.arange(size) & stride == 0)
        a, b = v[:, first], v[:, first + stride]  # copies
        v[:, first], v[:, first + stride] = a + b, a - b
        stride *= 2
    factor = {64: "0x1p-3", 128: "0x1.6a09e6p-4", 256: "0x1p-4"}[size]
    return (v * _f32(float.fromhex(factor))).reshape(-1)


def fill(x: F32, multiple: int) -> F32:
    """Append +0 up to a multiple."""
    return np.concatenate([x, np.zeros(-len(x) % multiple, np.float32)])


def to_f32(x: NDArray[np.generic]) -> F32:
    """float32 and float16 arrays as they are meant, uint16 arrays as bf16 bits."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


def from_f32(x: F32, dtype: str, *, saturate: bool) -> NDArray[np.generic]:
    """To "float32", "float16" or "bfloat16" (as uint16 bits), nearest even, one NaN.

    A finite value beyond the dtype becomes the largest finite one if saturate, else Inf.
    """
    if dtype == "float32":
        return decoder.canonical(x)
    name = "bf16" if dtype == "bfloat16" else "fp16"
    source = x if saturate else beyond_to_inf(x, dtype)
    bits = np.frombuffer(encode_unscaled(name, source, None), "<u2")
    return bits if dtype == "bfloat16" else bits.view(np.float16)


def beyond_to_inf(x: F32, dtype: str) -> F32:
    """Values that round to Inf in dtype become Inf, all others stay as they are."""
    if dtype == "float32":
        return x
    kind = minifloat.BF16 if dtype == "bfloat16" else minifloat.FP16
    step = kind.values[-1] - kind.values[-2]
    out = x.copy()
    beyond = np.abs(x.astype(np.float64)) >= kind.largest + step / 2
    out[beyond] = np.copysign(np.float32(np.inf), x[beyond])
    return out


def apply_policy(x: F32, spec: Spec) -> F32:
    """nonfinite=zero."""
    return np.where(np.isfinite(x), x, _f32(0)).astype(np.float32) if spec.nonfinite == "zero" else x


def with_residual(x: F32, residual: F32) -> F32:
    """Section 1.1: finite residuals on finite x, never beyond FLT_MAX."""
    total = np.clip(x + residual, _f32(-FLT_MAX), _f32(FLT_MAX))
    return np.where(np.isfinite(x) & np.isfinite(residual), total, x).astype(np.float32)


class ReferenceCodec:
    """What ``gcomm.codec(text)`` does, position by position and with no state of its own."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spec = parse(text)

    def wire_bytes(self, count: int) -> int:
        """Encoded length."""
        return int(decoder.encoded_bytes(self._decoder_text, count))

    @property
    def _decoder_text(self) -> str:
        if not self.spec.hadamard:
            return self.spec.format
        return f"hadamard+{self.spec.format}:size={self.spec.hadamard}:seed={self.spec.seed}"

    def decode(self, data: bytes, count: int) -> F32:
        """The independent decoder's float32 values."""
        return np.asarray(decoder.decode(self._decoder_text, bytes(data), count), np.float32)

    def encode(
        self,
        x: NDArray[np.generic],
        *,
        key: str = "",
        call: int = 0,
        source: int = 0,
        element: int = 0,
        residual: F32 | None = None,
        is_sum: bool = False,
    ) -> bytes:
        """Encode a range whose first element is number ``element`` of its tensor.

        Parameters
        ----------
        x : array, shape (n,)
            float32, float16, or uint16 (bf16 bits).
        key, call, source, element
            What stochastic rounding depends on; source -1 is an owner's sum.
        residual : float32 array, shape (n,), optional
            Error feedback: added first, then replaced by what was lost.
        is_sum : bool
            An owner's sum, which nonfinite=zero does not concern.
        """
        spec = self.spec
        with np.errstate(all="ignore"):
            value = to_f32(x) if is_sum else apply_policy(to_f32(x), spec)
            if residual is not None:
                value = with_residual(value, residual)
            seen = value
            if spec.hadamard:
                seen = hadamard(fill(value, spec.hadamard), spec.hadamard, spec.seed)
            data = self._encode_filled(seen, philox.stream_id(key, source), call, element)
            if residual is not None:
                decoded = self.decode(data, len(value))
                lost = value - decoded
                good = np.isfinite(value) & np.isfinite(decoded) & np.isfinite(lost)
                residual[:] = np.where(good, lost, _f32(0))
        return data

    def _encode_filled(self, x: F32, stream: int, call: int, element: int) -> bytes:
        spec = self.spec
        if len(x) == 0:
            return b""
        padded = fill(x, spec.block)
        u16 = None
        if spec.stochastic and spec.format != "fp32":
            u16 = philox.uniform16(element, len(padded), spec.seed, call, stream)
        if spec.format in UNSCALED:
            return encode_unscaled(spec.format, x, u16)
        blocks = padded.reshape(-1, spec.block)
        per_tile = TILE // spec.block
        g = tile_scales(blocks, per_tile) if spec.format == "nvfp4" else None
        scales, codes = encode_blocks(spec, blocks, g, None if u16 is None else u16.reshape(blocks.shape))
        out = []
        for first in range(0, len(blocks), per_tile):
            if g is not None:
                out.append(g[first : first + 1].astype("<f4").tobytes())
            out.append(scales[first : first + per_tile].tobytes())
            out.append(codes[first : first + per_tile].tobytes())
        return b"".join(out)
