"""GIFT against its float64 reference: the basis by hand, and all_reduce in every mode, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gift_data import F32, F64, codecs_of, gradients, reduced
from native_codec import ISAS, NativeCodec
from reference import gift
from reference.bound import all_reduce_bound, bound

import gcomm
from gcomm.errors import NonFiniteError

SHAPES = [(48, 96), (97, 64), (200, 40)]


def _spectrum(shape: tuple[int, int], ratio: float, seed: int = 0) -> F32:
    """A matrix whose singular values fall by ``ratio`` each."""
    random = np.random.default_rng(seed)
    u, v = (np.linalg.qr(random.standard_normal((size, min(shape))))[0] for size in shape)
    return ((u * ratio ** np.arange(min(shape))) @ v.T).astype(np.float32)


# ---- gcomm.gift.Basis ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_basis_finds_the_leading_directions(shape: tuple[int, int]) -> None:
    reference = _spectrum(shape, 0.6)
    basis = gcomm.gift.Basis(shape, 6)
    assert (basis.rank, basis.shape) == (0, shape)
    basis.update(reference, rounds=6)
    exact = gift.svd_basis(reference, 6)
    assert basis.rank == 6
    assert basis.u.shape == (shape[0], 6)
    assert basis.v.shape == (shape[1], 6)
    # Subspace iteration: six rounds, both ways, each a factor of s_7 / s_k (0.6 for the last one) twice.
    np.testing.assert_allclose(basis.spectrum, exact.singular, rtol=2e-3)
    np.testing.assert_allclose(basis.spectrum[:4], exact.singular[:4], rtol=1e-5)
    for ours, theirs in ((basis.u, exact.u), (basis.v, exact.v)):
        np.testing.assert_allclose(ours.T @ ours, np.eye(6), atol=1e-6)
        cosines = np.abs((ours.astype(np.float64) * theirs).sum(axis=0))
        assert (cosines > [1 - 1e-6] * 3 + [1 - 1e-4] + [0.99, 0.9]).all()
    # u and v belong together: U^T G V is the spectrum, signs and all.
    core = basis.u.astype(np.float64).T @ reference @ basis.v
    np.testing.assert_allclose(core, np.diag(basis.spectrum), atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_basis_applies_the_reference_transform(shape: tuple[int, int]) -> None:
    basis = gcomm.gift.Basis(shape, 5)
    basis.update(_spectrum(shape, 0.6), rounds=6)
    exact = gift._basis(
        basis.u.astype(np.float64),
        basis.v.astype(np.float64),
        basis.spectrum,
        _spectrum(shape, 0.6).astype(np.float64),
    )
    factors = exact.factors()
    assert factors.min() < 0.6
    for x in (_spectrum(shape, 0.6), np.random.default_rng(3).standard_normal(shape).astype(np.float32)):
        there = basis.apply(x)
        rounding = (sum(shape) + 40) * 2.0**-24 * np.linalg.norm(x)
        np.testing.assert_allclose(
            there, gift.scaled(x.astype(np.float64), exact, factors), rtol=0, atol=rounding
        )
        back = basis.inverse(there)
        assert (back.dtype, back.shape) == (np.float32, shape)
        np.testing.assert_allclose(back, x, rtol=0, atol=4 * rounding / factors.min() ** 2)
        np.testing.assert_allclose(
            basis.inverse(x),
            gift.scaled(x.astype(np.float64), exact, 1 / factors),
            atol=rounding / factors.min() ** 2,
        )


def test_basis_inputs() -> None:
    reference = _spectrum((48, 96), 0.6)
    one, two = gcomm.gift.Basis((48, 96), 5), gcomm.gift.Basis([48, 96], 5)
    one.update(reference)
    two.update(np.asfortranarray(reference))
    assert one.digest == two.digest != 0
    halves = torch.from_numpy(reference).to(torch.bfloat16)
    one.update(halves)
    two.update(halves.float())
    assert one.digest == two.digest
    assert np.array_equal(one.apply(halves), two.apply(halves.float().numpy()))
    before = one.digest
    one.update(reference)
    assert one.digest != before
    everywhere = [gcomm.gift.Basis((48, 96), 5, isa=isa) for isa in ISAS]
    for basis in everywhere:
        basis.update(reference)
    assert len({basis.digest for basis in everywhere}) == 1
    low = gcomm.gift.Basis((48, 96), 5)
    low.update(np.outer(np.arange(48), np.ones(96)).astype(np.float32))
    assert low.rank == 1


def test_basis_errors() -> None:
    def make(*args: Any) -> Callable[[], Any]:
        return lambda: gcomm.gift.Basis(*args)

    for call, text in [
        (make((48,), 5), "shape"),
        (make((48, 0), 5), "shape"),
        (make((48, 2.0), 5), "shape"),
        (make((48, 96), 0), "rank"),
        (make((48, 96), True), "rank"),
        (make((48, 96), 48), "rank"),
        (make((48, 96), 5, "x"), "positional arguments"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            call()
    basis = gcomm.gift.Basis((48, 96), 5)
    with pytest.raises(ValueError, match="no reference yet"):
        basis.apply(np.zeros((48, 96), np.float32))
    with pytest.raises(ValueError, match="no reference yet"):
        basis.inverse(np.zeros((48, 96), np.float32))
    basis.update(_spectrum((48, 96), 0.6))
    digest = basis.digest
    bad = _spectrum((48, 96), 0.6)
    bad[3, 3] = np.nan
    for matrix in (bad, np.zeros((48, 96), np.float32)):
        with pytest.raises(NonFiniteError):
            basis.update(matrix)
    with pytest.raises(ValueError, match=r"\(48, 96\).*\(96, 48\)"):
        basis.update(bad.T)
    with pytest.raises(TypeError):
        basis.update(np.zeros((48, 96), np.int32))
    with pytest.raises(ValueError, match="rounds"):
        basis.update(_spectrum((48, 96), 0.6), rounds=0)
    assert basis.digest == digest


# ---- all_reduce against exact sums ---------------------------------------------------------------------------


def _library_basis(shape: tuple[int, int], rank: int, result: F32) -> gift.Basis:
    """What a key's basis is after its first call."""
    basis = gcomm.gift.Basis(shape, rank)
    basis.update(result, rounds=3)
    u, v = basis.u.astype(np.float64), basis.v.astype(np.float64)
    return gift._basis(u, v, basis.spectrum, result.astype(np.float64))


def _within(result: F32, total: F64, allowed: F64, what: str) -> None:
    error = np.abs(result.astype(np.float64) - total) - allowed
    worst = np.unravel_index(np.argmax(error), error.shape)
    assert error.max() <= 0, (
        f"{what}: {worst} is off by {error[worst] + allowed[worst]}, allowed {allowed[worst]}"
    )


def _rounding(parts: list[F32]) -> float:
    """Of fp32 products of the whole matrix."""
    return (sum(parts[0].shape) + 100) * 2.0**-24 * sum(float(np.linalg.norm(part)) for part in parts)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("wire", ["int8", "int4", "nvfp4", "hadamard+int4"])
def test_scale_is_in_bounds(shape: tuple[int, int], ranks: int, wire: str) -> None:
    op = "avg" if ranks == 3 else "sum"
    steps = [gradients(shape, ranks, step) for step in range(2)]
    first, second = reduced(codecs_of(f"gift+{wire}:mode=scale:rank=6:min_bytes=0", ranks), steps, op)
    total, allowed = all_reduce_bound([part.ravel() for part in steps[0]], wire, op)
    _within(first.ravel(), total, allowed, "the first call goes direct")
    basis = _library_basis(shape, 6, first)
    factors = basis.factors()
    coded = [gift.scaled(part.astype(np.float64), basis, factors).astype(np.float32) for part in steps[1]]
    total, allowed = all_reduce_bound([part.ravel() for part in coded], wire, op)
    # In the coordinates of the wire; what is rounded in others comes on top.
    ours = gift.scaled(second.astype(np.float64), basis, factors).ravel()
    _within(ours, total, allowed * 1.01 + 8 * _rounding(steps[1]), wire)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("wire", ["int8", "int4"])
def test_split_is_in_bounds(shape: tuple[int, int], ranks: int, wire: str) -> None:
    steps = [gradients(shape, ranks, step) for step in range(2)]
    first, second = reduced(codecs_of(f"gift+{wire}:mode=split:rank=6:min_bytes=0", ranks), steps)
    basis = _library_basis(shape, 6, first)
    int8 = NativeCodec("int8")

    def quantised(x: F64) -> F64:
        flat = np.ascontiguousarray(x, np.float32).ravel()
        return int8.decode(int8.encode(flat), len(flat)).reshape(x.shape).astype(np.float64)

    sides_p, sides_s, rests = [], [], []
    for part in steps[1]:
        g = part.astype(np.float64)
        p = quantised(basis.u.T @ g)
        s = quantised(((g - basis.u @ p) @ basis.v).T).T
        sides_p.append(p)
        sides_s.append(s)
        rests.append((g - basis.u @ p - s @ basis.v.T).astype(np.float32))
    # A side's code may be one off where fp32 and float64 round to different sides: a step, then.
    step = 1.01 * max(np.abs(side).max() for side in sides_p + sides_s) / 127
    total = np.add.reduce([part.astype(np.float64) for part in steps[1]])
    # What the side has more, the rest has less: that tells only in how large the rest is.
    slack = np.full(total.size, step * 2 * math.sqrt(6))
    off = np.zeros(total.size)
    for rest in rests:
        off += bound(wire, rest.ravel(), slack) - slack
    allowed = bound(wire, np.add.reduce(rests).ravel(), ranks * slack + off) - ranks * slack

    def side_off(side: F64) -> F64:
        return bound("int8", side.ravel(), np.full(side.size, ranks * step)).reshape(side.shape) - ranks * step

    off_p, off_s = side_off(np.add.reduce(sides_p)), side_off(np.add.reduce(sides_s).T).T
    allowed = (
        allowed.reshape(shape) + np.abs(basis.u) @ off_p + off_s @ np.abs(basis.v.T) + 8 * _rounding(steps[1])
    )
    _within(second, total, allowed, wire)
    # Tight enough to tell: less than the largest direction's share by far.
    assert np.median(allowed) < 0.3 * np.abs(total).max()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_is_in_bounds(shape: tuple[int, int], ranks: int) -> None:
    steps = [gradients(shape, ranks, step) for step in range(2)]
    first, second = reduced(codecs_of("gift+int4:mode=rows:rank=18:min_bytes=0", ranks), steps)
    basis = _library_basis(shape, 18, first)
    rows, cols = shape
    group = 64 // math.gcd(cols, 64)
    while group * cols < 4096 or (group < 16 and 2 * group * cols <= 65536):
        group *= 2
    scales = 2.0 ** (np.floor(np.log2(basis.singular / math.sqrt(rows))) + 1)
    bands = [(slice(0, 16), NativeCodec("int6")), (slice(16, 18), NativeCodec("int4"))]

    def rest_of(g: F64) -> F64:
        """Of one group of rows: what the format gets."""
        s = (g @ basis.v) / scales
        for band, codec in bands:
            flat = np.ascontiguousarray(s[:, band], np.float32).ravel()
            s[:, band] = codec.decode(codec.encode(flat), len(flat)).reshape(len(g), -1)
        return np.asarray(g - (s * scales) @ basis.v.T)

    total = np.add.reduce([part.astype(np.float64) for part in steps[1]])
    allowed = np.zeros(shape)
    for begin in range(0, rows, group):
        these = slice(begin, min(begin + group, rows))
        largest = max(np.abs((part[these].astype(np.float64) @ basis.v) / scales).max() for part in steps[1])
        # A coordinate's code may be one off, a step of its band; that tells only in how large the rest is.
        steps_of_bands = np.repeat([1 / 31, 1 / 7], [16, 2]) * 1.01 * largest
        slack = np.tile(np.abs(basis.v * scales) @ steps_of_bands, these.stop - begin)
        off = np.zeros(len(slack))
        for part in steps[1]:
            off += bound("int4", rest_of(part[these].astype(np.float64)).ravel(), slack) - slack
        off = bound("int4", rest_of(total[these]).ravel(), ranks * slack + off) - ranks * slack
        allowed[these] = off.reshape(-1, cols)
    _within(second, total, allowed + 8 * _rounding(steps[1]), "rows")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("geometry", ["factored", "elementwise"])
def test_weighted_is_in_bounds(ranks: int, geometry: str) -> None:
    shape = (64, 96)
    # Not so far apart that any weight is floored.
    size = np.outer(2.0 ** (np.arange(64) % 4), 2.0 ** -(np.arange(96) % 3)).astype(np.float32)
    steps = [[size * part for part in gradients(shape, ranks, step)] for step in range(10)]
    text = f"gift+int8:geometry={geometry}:refresh=1:min_bytes=0"
    results = reduced(codecs_of(text, ranks), steps)
    square = results[0].astype(np.float64) ** 2
    for step in range(1, 10):
        if geometry == "factored" or step < 8:
            weights = gift.factored_weights(square, step)
        else:
            mean = np.mean([result.astype(np.float64) ** 2 for result in results[:step]], axis=0)
            weights = np.maximum(np.sqrt(mean), math.sqrt(mean.mean()) / 256)
        coded = [(part / weights).astype(np.float32) for part in steps[step]]
        total, allowed = all_reduce_bound([part.ravel() for part in coded], "int8")
        _within(
            (results[step] / weights).ravel(),
            total,
            allowed * 1.01 + 1e-5 * np.abs(total).max(),
            f"step {step}",
        )
        keep = min(0.9, step / (step + 1))
        square = keep * square + (1 - keep) * results[step].astype(np.float64) ** 2


def _outer(step: int, rank: int) -> F32:
    """Of rank 1, with columns that int4 rounds to zero at first."""
    rows, cols = (np.random.default_rng(seed).standard_normal(n) for seed, n in ((1, 64), (2, 96)))
    factor = 1 + 0.1 * np.random.default_rng([step, rank]).standard_normal()
    return (np.outer(rows, cols * 0.05 ** (np.arange(96) % 4)) * factor).astype(np.float32)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("geometry", ["factored", "elementwise"])
def test_weights_of_a_coarse_first_sum(ranks: int, geometry: str) -> None:
    """What the first, direct call rounds to zero must not drown the rest in the next ones."""
    steps = [[_outer(step, rank) for rank in range(ranks)] for step in range(14)]
    codecs = codecs_of(f"gift+int4:geometry={geometry}:min_bytes=0", ranks)
    for step, (parts, result) in enumerate(zip(steps, reduced(codecs, steps), strict=True)):
        exact = sum(part.astype(np.float64) for part in parts)
        assert np.linalg.norm(result - exact) < 0.2 * np.linalg.norm(exact), step
    assert codecs[0].report()[0]["path"] != "direct"


@pytest.mark.parametrize("geometry", ["factored", "elementwise"])
def test_weights_of_another_tensor_are_dropped(geometry: str) -> None:
    """From the refresh that sees it on the sum is as good as a direct one."""
    size = 2.0 ** (np.arange(96) % 12)
    steps = [
        [part * (size if step < 5 else size[::-1]) for part in gradients((64, 96), 2, step)]
        for step in range(14)
    ]
    steps = [[part.astype(np.float32) for part in parts] for parts in steps]
    results = reduced(codecs_of(f"gift+int4:geometry={geometry}:min_bytes=0", 2), steps)
    for step in (2, 3, 4, 11, 12, 13):
        exact = sum(part.astype(np.float64) for part in steps[step])
        assert np.linalg.norm(results[step] - exact) < 0.2 * np.linalg.norm(exact), step


@pytest.mark.parametrize("shape", [(1, 300), (300, 1)])
@pytest.mark.parametrize("geometry", ["factored", "elementwise"])
def test_weights_of_vectors_wait_until_they_are_known(geometry: str, shape: tuple[int, int]) -> None:
    """The square of an element says nothing about the next one's size."""
    steps = [gradients(shape, 2, step) for step in range(12)]
    codecs = codecs_of(f"gift+nvfp4:geometry={geometry}:refresh=1:min_bytes=0", 2)
    for step, (parts, result) in enumerate(zip(steps, reduced(codecs, steps), strict=True)):
        exact = sum(part.astype(np.float64) for part in parts)
        assert np.linalg.norm(result - exact) < 0.4 * np.linalg.norm(exact), step
    assert codecs[0].report()[0]["path"] != "direct"
