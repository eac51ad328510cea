"""What a collective must give: float64 sums, and for each element how far a wire format may be from them.

The bounds follow from docs/wire-format.md and share no code with the codecs: for each block of the *data at
hand* the largest magnitude bounds the scale, and the scale and the element's own magnitude bound the rounding
error. They are worst cases, element by element, not averages: a single element that is off by more than its
format allows is wrong.

Every bound here grows with the magnitudes that it is computed from. That is what lets the second quantisation
of a reduction be bounded although the value that is quantised is known only up to the first one's error: the
bound of ``|exact sum| + error so far`` covers whatever the owner had in hands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

TILE = 4096
_EPS32 = 2.0**-24  # unit roundoff of fp32
_SLACK = 2.0**-21  # of |x|: scaling, its reciprocal and scaling back are rounded to fp32
_TINY = 2.0**-120  # scales stop at 2^-126


@dataclass(frozen=True)
class Grid:
    """The values that a format can say, by how far a number can be from the nearest.

    Attributes
    ----------
    block:
        Elements that share a scale.
    scale:
        Rule of the scale: ``"none"``, ``"bf16"``, ``"e8m0"`` or ``"nvfp4"``.
    top:
        Largest magnitude of an element, in units of the scale.
    relative, absolute:
        Half the spacing at y is at most ``max(relative * |y|, absolute)``, y in units of the scale.
    """

    block: int
    scale: str
    top: float
    relative: float
    absolute: float


_E4M3 = (448.0, 2.0**-4, 2.0**-10)
_E2M1 = (6.0, 0.25, 0.25)
GRIDS = {
    "fp32": Grid(1, "none", float(np.finfo(np.float32).max), 0.0, 0.0),
    "bf16": Grid(1, "none", float.fromhex("0x1.fep127"), 2.0**-8, 2.0**-134),
    "fp16": Grid(1, "none", 65504.0, 2.0**-11, 2.0**-25),
    "fp8_e4m3": Grid(128, "bf16", *_E4M3),
    "fp8_e5m2": Grid(128, "bf16", 57344.0, 2.0**-3, 2.0**-17),
    "int8": Grid(128, "bf16", 127.0, 0.0, 0.5),
    "int6": Grid(64, "bf16", 31.0, 0.0, 0.5),
    "int4": Grid(64, "bf16", 7.0, 0.0, 0.5),
    "int3": Grid(32, "bf16", 3.0, 0.0, 0.5),
    "int2": Grid(32, "bf16", 3.0, 0.0, 1.0),
    "mxfp8": Grid(32, "e8m0", *_E4M3),
    "mxfp4": Grid(32, "e8m0", *_E2M1),
    "nvfp4": Grid(16, "nvfp4", *_E2M1),
}
# What a result loses where it is stored: (relative, absolute) half spacing of the tensor's own dtype.
STORED = {"float": (0.0, 0.0), "half": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}


@dataclass(frozen=True)
class Rule:
    """The parts of a codec's text that change its bound."""

    grid: Grid
    hadamard: int = 0  # group length, 0: no transform
    seed: int = 0
    stochastic: bool = False
    search: bool = False

    @staticmethod
    def parse(spec: str) -> Rule:
        """Rule of a codec's text, ``"[hadamard+]format[:option=value]..."``; ``"none"`` is exact.

        Raises
        ------
        ValueError
            There is no bound for this format.
        """
        transform, _, rest = spec.rpartition("+")
        name, *options = rest.split(":")
        settings = dict(option.partition("=")[::2] for option in options)
        name = "fp32" if name == "none" else name
        if "gift" in transform.split("+"):
            raise ValueError(
                f"there is no error bound for codec {spec!r} on flat buffers: gift learns from matrices, and "
                "what it loses depends on their spectrum (docs/gift.md, benchmarks/gift)"
            )
        if name not in GRIDS or transform not in ("", "hadamard"):
            raise ValueError(f"there is no error bound for codec {spec!r}; known formats: {', '.join(GRIDS)}")
        return Rule(
            grid=GRIDS[name],
            hadamard=int(settings.get("size", "64")) if transform else 0,
            seed=int(settings.get("seed", "0")),
            stochastic=settings.get("rounding") == "stochastic",
            search=settings.get("scale") == "search",
        )

    @property
    def exact(self) -> bool:
        """Whether the format keeps fp32 values as they are."""
        return self.grid.absolute == 0.0 and self.grid.relative == 0.0 and not self.hadamard

    # -- the range that the format sees
    # ------------------------------------------------------------------------------

    def forward(self, x: F64) -> F64:
        """``x`` (n, from a tile's start) in the coordinates that are quantised, in whole groups."""
        if not self.hadamard:
            return x
        filled = np.zeros(-(-x.size // self.hadamard) * self.hadamard)
        filled[: x.size] = x
        signs = hadamard_signs(self.seed)
        signed = filled * np.resize(signs, filled.size)
        return walsh(signed.reshape(-1, self.hadamard)).ravel()

    def backward(self, bound: F64, magnitude: F64) -> F64:
        """Bound in the caller's coordinates of an error of at most ``bound`` in the quantised ones.

        Each entry of the inverse transform is +-1/sqrt(h), so an element collects at most the group's sum of
        bounds over sqrt(h). ``magnitude`` (n elements) bounds the values, for fp32's own rounding in the
        transforms.
        """
        if not self.hadamard:
            return bound
        h = self.hadamard
        groups = bound.reshape(-1, h).sum(axis=1) / np.sqrt(h)
        filled = np.zeros(bound.size)
        filled[: magnitude.size] = magnitude
        rounding = filled.reshape(-1, h).sum(axis=1) * (64 * _EPS32 / np.sqrt(h))
        return np.repeat(groups + rounding, h)[: magnitude.size]

    # -- one quantisation
    # --------------------------------------------------------------------------------------------

    def quantised(self, magnitude: F64) -> F64:
        """Largest error of one encode and decode of elements no larger than ``magnitude``, from a tile's start
        on.

        ``magnitude`` (n) is in the quantised coordinates; so is the result (n, float64).
        """
        grid = self.grid
        step = 2.0 if self.stochastic else 1.0
        if grid.scale == "none":
            spacing = np.maximum(step * grid.relative * magnitude, step * grid.absolute)
            saturated: F64 = np.maximum(spacing, magnitude - grid.top)
            return saturated
        blocks, tiles = _maxima(magnitude, grid.block)
        nvfp4 = grid.scale == "nvfp4"
        scale, beyond = self._nvfp4_scale(blocks, tiles) if nvfp4 else self._plain_scale(blocks)
        scale, beyond = (np.repeat(values, grid.block)[: magnitude.size] for values in (scale, beyond))
        error = np.maximum(step * grid.relative * magnitude, step * grid.absolute * scale)
        bound: F64 = np.maximum(error, np.minimum(beyond, magnitude)) + magnitude * _SLACK + _TINY
        return bound

    def _plain_scale(self, blocks: F64) -> tuple[F64, F64]:
        """Largest scale of each block; and by how much a value may lie beyond ``top`` scales: not at all."""
        grid = self.grid
        wanted = (blocks / grid.top).astype(np.float32).astype(np.float64) * (1 + 2 * _EPS32)
        if self.search:
            wanted = blocks / 4.0
        mantissa, exponent = np.frexp(
            np.maximum(wanted, 2.0**-126)
        )  # wanted = mantissa * 2^exponent, in [1/2, 1)
        if grid.scale == "e8m0":
            scale = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))
        else:
            scale = np.ldexp(np.ceil(np.ldexp(mantissa, 8)), exponent - 8)
        return scale, np.zeros_like(scale)

    def _nvfp4_scale(self, blocks: F64, tiles: F64) -> tuple[F64, F64]:
        """The same where the scale itself is rounded to e4m3, maybe down: what lies beyond saturates."""
        tile = tiles / 2688.0
        wanted = blocks / (4.0 if self.search else 6.0)
        scale = wanted * (1 + 2.0**-4) + tile * 2.0**-10
        beyond = blocks * 2.0**-4 + tile * (6.0 * 2.0**-10) + _TINY
        return scale, beyond


def _maxima(magnitude: F64, block: int) -> tuple[F64, F64]:
    """Largest magnitude of each block, and of the tile that each block lies in."""
    count = magnitude.size
    filled = np.zeros(-(-count // TILE) * TILE)
    filled[:count] = magnitude
    blocks = filled.reshape(-1, block).max(axis=1)
    tiles = blocks.reshape(-1, TILE // block).max(axis=1)
    needed = -(-count // block)
    return blocks[:needed], np.repeat(tiles, TILE // block)[:needed]


# ---- the randomised Hadamard transform -----------------------------------------------------------------------


def walsh(groups: F64) -> F64:
    """Orthonormal Walsh-Hadamard transform of each row of ``groups`` (m, h), h a power of two."""
    rows, length = groups.shape
    stride = 1
    while stride < length:
        pairs = groups.reshape(rows, -1, 2, stride)
        groups = np.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), axis=2)
        stride *= 2
    transformed: F64 = groups.reshape(rows, length) / np.sqrt(length)
    return transformed


def hadamard_signs(seed: int) -> F64:
    """The tile's 4096 signs (+1 or -1) of docs/wire-format.md, section 2."""
    words = np.stack(_philox(seed, np.arange(TILE // 128)), axis=1)  # four words of 32 signs a counter
    bits = (words.ravel()[:, None] >> np.arange(32, dtype=np.uint64)) & np.uint64(1)
    signs: F64 = 1.0 - 2.0 * bits.ravel().astype(np.float64)
    return signs


def _philox(seed: int, counters: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint64], ...]:
    """Philox4x32-10 at counters (w, 0, 0, "HADA"), key = seed."""
    low = np.uint64(0xFFFFFFFF)
    x0 = counters.astype(np.uint64)
    x1, x2 = np.zeros_like(x0), np.zeros_like(x0)
    x3 = np.full_like(x0, 0x48414441)
    key0, key1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        first, second = x0 * np.uint64(0xD2511F53), x2 * np.uint64(0xCD9E8D57)
        x0 = (second >> np.uint64(32)) ^ x1 ^ np.uint64(key0)
        x1 = second & low
        x2 = (first >> np.uint64(32)) ^ x3 ^ np.uint64(key1)
        x3 = first & low
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return x0, x1, x2, x3


# ---- collectives ---------------------------------------------------------------------------------------------


def moved(x: F32, rule: Rule, dtype: str) -> tuple[F64, F64]:
    """Exact values and per-element bound of ``x`` (n, from a tile's start) after one quantisation."""
    exact = x.astype(np.float64)
    if rule.exact:
        return exact, np.zeros(x.size)
    inner = rule.quantised(np.abs(rule.forward(exact)))
    bound = rule.backward(inner, np.abs(exact))
    return exact, bound + _stored(np.abs(exact) + bound, dtype)


def reduced(
    inputs: list[F32],
    owner: npt.NDArray[np.integer] | None,
    rule: Rule,
    *,
    average: bool,
    requantised: bool,
    dtype: str,
) -> tuple[F64, F64]:
    """Exact reduction and per-element bound of the direct two-phase algorithm.

    Parameters
    ----------
    inputs:
        One array (n, from a tile's start) a rank.
    owner:
        For each element (n) the rank that sums it and whose own contribution is not quantised; None: every
        contribution was quantised, or none (the rule is exact).
    rule:
        The codec's.
    average:
        Divide by the number of ranks.
    requantised:
        The sum is encoded once more (all_reduce), not handed out as it is (reduce_scatter).
    dtype:
        Name of the tensor's type, a key of ``STORED``.
    """
    ranks = len(inputs)
    exact = np.sum([x.astype(np.float64) for x in inputs], axis=0)
    total = np.sum([np.abs(x).astype(np.float64) for x in inputs], axis=0)
    error = np.zeros(rule.forward(exact).size)
    if not rule.exact:
        for rank, x in enumerate(inputs):
            own = rule.quantised(np.abs(rule.forward(x.astype(np.float64))))
            if owner is not None:
                own[: owner.size][owner == rank] = 0.0
            error += own
    divisor = float(ranks) if average else 1.0
    exact, total, error = exact / divisor, total / divisor, error / divisor
    # Sums in fp32: each of the ranks' additions, and the division, is off by at most eps of the largest partial
    # sum.
    addition = (ranks + 1) * _EPS32 * (total + rule.backward(error, total))
    if requantised and not rule.exact:
        before = error + (_spread(addition, rule.hadamard) if rule.hadamard else addition)
        after = before + rule.quantised(np.abs(rule.forward(exact)) + before)
        bound = rule.backward(after, total)
    else:
        bound = rule.backward(error, total) + addition
    return exact, bound + _stored(np.abs(exact) + bound, dtype)


def _spread(bound: F64, group: int) -> F64:
    """Bound in transformed coordinates of an error of at most ``bound`` (n) in the caller's."""
    filled = np.zeros(-(-bound.size // group) * group)
    filled[: bound.size] = bound
    return np.repeat(filled.reshape(-1, group).sum(axis=1) / np.sqrt(group), group)


def _stored(magnitude: F64, dtype: str) -> F64:
    relative, absolute = STORED[dtype]
    bound: F64 = np.maximum(relative * magnitude, absolute)
    return bound


def summed_in_dtype(inputs: list[F32], dtype: str) -> tuple[F64, F64]:
    """Exact sum, and the bound of any order of additions in the tensor's own dtype (what baselines do)."""
    exact = np.sum([x.astype(np.float64) for x in inputs], axis=0)
    total = np.sum([np.abs(x).astype(np.float64) for x in inputs], axis=0)
    relative, absolute = STORED[dtype]
    unit = max(relative, _EPS32)
    return exact, len(inputs) * (unit * (1 + len(inputs) * unit) * total + absolute)
