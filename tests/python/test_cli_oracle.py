"""The oracle of ``gcomm bench``: its bounds hold for every codec, and a value beyond them is seen."""

from __future__ import annotations

import numpy as np
import pytest

import gcomm
from gcomm.cli import oracle

COUNTS = (1, 7, 128, 129, 4097, 10_007)
SPECS = [
    *oracle.GRIDS,
    "hadamard+int8",
    "hadamard+int4:size=128",
    "hadamard+fp8_e4m3:size=256",
    "hadamard+int3:seed=7",
    "nvfp4:scale=search",
    "mxfp4:scale=search",
    *(f"{name}:rounding=stochastic" for name in oracle.GRIDS if name != "fp32"),
]


def signal(count: int, seed: int) -> oracle.F32:
    """Values whose scale differs from block to block."""
    rng = np.random.default_rng(seed)
    scale = np.exp2(rng.integers(-9, 10, -(-count // 32))).repeat(32)[:count]
    return (rng.standard_normal(count) * scale).astype(np.float32)


def roundtrip(spec: str, x: oracle.F32) -> oracle.F32:
    codec = gcomm.codec(spec)
    out = np.empty_like(x)
    codec.decode(codec.encode(x), out)
    return out


@pytest.mark.parametrize("spec", SPECS)
def test_bound_holds_and_is_not_far_off(spec: str) -> None:
    closest = 0.0
    for count in COUNTS:
        x = signal(count, count)
        exact, bound = oracle.moved(x, oracle.Rule.parse(spec), "float")
        error = np.abs(roundtrip(spec, x) - exact)
        assert (error <= bound).all(), (spec, count, int((error > bound).sum()))
        if bound.any():
            closest = max(closest, float((error / np.where(bound > 0, bound, np.inf)).max()))
    # A transform spreads an error over its group, so the worst case is far from what happens.
    if not spec.startswith("fp32"):
        assert closest > (0.12 if spec.startswith("hadamard") else 0.5), closest


@pytest.mark.parametrize("spec", ["fp8_e4m3", "int4", "nvfp4", "mxfp8", "bf16"])
def test_a_value_beyond_its_bound_is_seen(spec: str) -> None:
    x = signal(10_007, 3)
    decoded = roundtrip(spec, x)
    exact, bound = oracle.moved(x, oracle.Rule.parse(spec), "float")
    where = int(np.argmax(np.abs(x)))
    for wrong in (-decoded[where], decoded[where] * np.float32(1.5), np.float32("nan"), np.float32(0)):
        damaged = decoded.copy()
        damaged[where] = wrong
        assert int((~(np.abs(damaged - exact) <= bound)).sum()) == 1, wrong


def test_a_scale_that_is_twice_too_large_is_seen() -> None:
    """What a mean tolerance would let through: every value is off by one coarser step."""
    x = signal(8192, 5)
    coarse = x.reshape(-1, 128)
    scale = 2 * np.abs(coarse).max(axis=1, keepdims=True) / 127
    decoded = (np.rint(coarse / scale) * scale).astype(np.float32).ravel()
    exact, bound = oracle.moved(x, oracle.Rule.parse("int8"), "float")
    assert (np.abs(decoded - exact) > bound).mean() > 0.2


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("spec", ["none", "fp8_e4m3", "int4", "nvfp4", "hadamard+int8", "bf16"])
def test_bound_of_a_reduction_holds_for_its_replay(spec: str, average: bool) -> None:
    """Two quantisations by the public codec, as the owner of the whole tensor would see them."""
    inputs = [signal(10_007, rank) for rank in range(3)]
    rule = oracle.Rule.parse(spec)
    quantise = (lambda x: x) if spec == "none" else (lambda x: roundtrip(spec, x))
    total = inputs[0] + quantise(inputs[1])
    total = total + quantise(inputs[2])
    result = quantise(total / np.float32(3) if average else total)
    owner = np.zeros(total.size, np.int64)
    exact, bound = oracle.reduced(inputs, owner, rule, average=average, requantised=True, dtype="float")
    assert (np.abs(result - exact) <= bound).all()
    assert not (np.abs(result * np.float32(1.3) - exact) <= bound).all()


def test_unknown_codec_has_no_bound() -> None:
    with pytest.raises(ValueError, match="no error bound for codec 'fp9'"):
        oracle.Rule.parse("fp9")


def test_walsh_is_orthonormal() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 64))
    np.testing.assert_allclose(oracle.walsh(oracle.walsh(x)), x, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(oracle.walsh(x), axis=1), np.linalg.norm(x, axis=1))
