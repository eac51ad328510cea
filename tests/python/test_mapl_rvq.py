"""gcomm.mapl.RVQ against its float64 reference: nearest codewords, their bits, what decoding gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from native_codec import ISAS
from numpy.typing import NDArray
from reference import rvq as reference

import gcomm
from gcomm.errors import CodecError, DtypeError, InvalidArgumentError, NonFiniteError

SHAPES = [
    {"subvector": 8, "stages": 4, "codewords": 256},
    {"subvector": 8, "stages": 2, "codewords": 100},
    {"subvector": 5, "stages": 3, "codewords": 16},
    {"subvector": 1, "stages": 1, "codewords": 2},
    {"subvector": 16, "stages": 2, "codewords": 1000},
]


def _rows(tokens: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    """Correlated values, rows of very different sizes, one of zeros."""
    random = np.random.default_rng(seed)
    z = random.standard_normal((tokens, dim)) @ random.standard_normal((dim, dim))
    z *= 10.0 ** random.uniform(-8, 8, (tokens, 1))
    z[tokens // 2] = 0
    return z.astype(np.float32)


@pytest.mark.parametrize("dim", [32, 37])
@pytest.mark.parametrize("shape", SHAPES)
def test_codes_are_the_nearest_codewords(shape: dict[str, int], dim: int) -> None:
    rvq = gcomm.mapl.RVQ(dim, **shape, seed=5)
    z = _rows(45, dim)
    for learned in (False, True):
        if learned:
            rvq.update(_rows(200, dim, 1))
            rvq.update(_rows(200, dim, 2))
        data = rvq.encode(z).tobytes()
        assert len(data) == rvq.encoded_bytes(45)
        scales, codes = reference.unpack(data, 45, dim, rvq.codebooks)
        assert codes.max() < shape["codewords"]
        # bf16 keeps eight bits.
        np.testing.assert_allclose(scales, reference.root_mean_squares(z), rtol=2.0**-8)
        worse, allowed = reference.surplus(z, scales, codes, rvq.codebooks)
        assert (worse <= allowed).all()
        out = rvq.decode(np.frombuffer(data, np.uint8), np.empty_like(z))
        exact = reference.decoded(scales, codes, dim, rvq.codebooks)
        sizes = np.abs(rvq.codebooks).max(axis=(1, 2)).sum() * scales[:, None]
        assert (np.abs(out - exact) <= (shape["stages"] + 1) * 2.0**-24 * sizes).all()
        assert not out[45 // 2].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_isa_learns_and_encodes_the_same_bits(shape: dict[str, int]) -> None:
    found = []
    for isa in ISAS:
        rvq = gcomm.mapl.RVQ(24, **shape, seed=9, isa=isa)
        for step in range(3):
            rvq.update(_rows(50, 24, step))
        found.append((rvq.codebooks.tobytes(), rvq.encode(_rows(30, 24, 7)).tobytes()))
    assert len(ISAS) > 1
    assert len(set(found)) == 1


def test_learning_brings_the_error_down() -> None:
    rvq = gcomm.mapl.RVQ(64, stages=2)
    test = _rows(300, 64, 0)
    mixed = np.random.default_rng(0).standard_normal((64, 64)) * 0.8 ** np.arange(64)

    def rows(seed: int) -> NDArray[np.float32]:
        return (np.random.default_rng(seed).standard_normal((500, 64)) @ mixed.T).astype(np.float32)

    def error() -> float:
        test = rows(1000)
        back = rvq.decode(rvq.encode(test), np.empty_like(test))
        return float(np.linalg.norm(back - test) / np.linalg.norm(test))

    errors = [error()]
    for step in range(40):
        rvq.update(rows(step))
        errors.append(error())
    assert errors[1] < 0.9 * errors[0]
    assert errors[-1] < 0.97 * errors[1]
    other = gcomm.mapl.RVQ(64, stages=2, seed=3)
    other.codebooks = rvq.codebooks
    assert np.array_equal(other.encode(test), rvq.encode(test))


def test_arrays_of_every_kind() -> None:
    rvq = gcomm.mapl.RVQ(16)
    z = np.random.default_rng(0).standard_normal((4, 5, 16)).astype(np.float32)
    rvq.update(z)
    codes = rvq.encode(z)
    assert codes.dtype == np.uint8
    assert codes.shape == (rvq.encoded_bytes(20),) == (20 * (2 + 2 * 4),)
    assert np.array_equal(rvq.encode(np.asfortranarray(z)), codes)
    assert np.array_equal(rvq.encode(torch.from_numpy(z).requires_grad_()), codes)
    halves = torch.from_numpy(z).to(torch.bfloat16)
    assert np.array_equal(rvq.encode(halves), rvq.encode(halves.float()))
    out = np.empty((20, 16), np.float32)
    assert rvq.decode(codes, out) is out
    for dtype in (torch.bfloat16, torch.float16):
        half = rvq.decode(codes, torch.empty(20, 16, dtype=dtype))
        assert torch.equal(half, torch.from_numpy(out).to(dtype))
    strided = np.zeros((20, 32), np.float32)
    rvq.decode(torch.from_numpy(codes), strided[:, ::2])
    assert np.array_equal(strided[:, ::2], out)
    assert not strided[:, 1::2].any()
    before = rvq.codebooks
    rvq.update(z[:0])
    assert np.array_equal(rvq.codebooks, before)
    assert rvq.encode(z[:0]).size == 0
    rvq.decode(rvq.encode(z[:0]), np.empty((0, 16), np.float32))


def test_errors() -> None:
    for arguments, name in [
        ({"dim": 0}, "dim"),
        ({"dim": 8, "subvector": 257}, "subvector"),
        ({"dim": 8, "stages": 0}, "stages"),
        ({"dim": 8, "codewords": 1}, "codewords"),
        ({"dim": 8, "codewords": 4097}, "codewords"),
        ({"dim": 8, "seed": -1}, "seed"),
    ]:
        with pytest.raises(InvalidArgumentError, match=f"RVQ: argument '{name}'"):
            gcomm.mapl.RVQ(**arguments)
    with pytest.raises(InvalidArgumentError, match="isa"):
        gcomm.mapl.RVQ(8, isa="mmx")
    rvq = gcomm.mapl.RVQ(16)
    z = np.random.default_rng(0).standard_normal((9, 16)).astype(np.float32)
    rvq.update(z)
    before, codes = rvq.codebooks, rvq.encode(z)
    bad = z.copy()
    bad[7, 3] = np.nan
    verbs: list[Any] = [rvq.update, rvq.encode]
    for verb in verbs:
        with pytest.raises(NonFiniteError, match="row 7"):
            verb(bad)
        with pytest.raises(InvalidArgumentError, match="rows of 16"):
            verb(z[:, :15])
        with pytest.raises(DtypeError, match="float64"):
            verb(z.astype(np.float64))
    out = np.full_like(z, 3)
    with pytest.raises(CodecError, match="9 rows"):
        rvq.decode(codes[:-1], out)
    with pytest.raises(DtypeError, match="uint8"):
        rvq.decode(codes.astype(np.int32), out)
    out.setflags(write=False)
    with pytest.raises(InvalidArgumentError, match="read-only"):
        rvq.decode(codes, out)
    assert (out == 3).all()
    for values in (before[:2], before.astype(np.float64)):
        with pytest.raises(InvalidArgumentError, match=r"\(4, 256, 8\)"):
            rvq.codebooks = values
    before[1, 2, 3] = np.inf
    with pytest.raises(InvalidArgumentError, match="element 3 of codeword 2 of stage 1"):
        rvq.codebooks = before
    assert np.array_equal(rvq.encode(z), codes)


def test_threads_take_turns() -> None:
    rvq = gcomm.mapl.RVQ(64, seed=1)
    rows = [_rows(300 + 50 * k, 64, k) for k in range(4)]
    want = [rvq.encode(z).tobytes() for z in rows]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(15):
            assert [codes.tobytes() for codes in pool.map(rvq.encode, rows)] == want


def test_isa_is_a_text() -> None:
    with pytest.raises(DtypeError, match="RVQ: argument 'isa'"):
        gcomm.mapl.RVQ(8, isa=3)


def test_sizes_beyond_numbers() -> None:
    with pytest.raises(InvalidArgumentError, match="more than 2"):
        gcomm.mapl.RVQ(2**32, subvector=1, stages=16, codewords=4096).encoded_bytes(2**32)
