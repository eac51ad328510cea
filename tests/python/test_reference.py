"""The independent reference is itself checked: published vectors, torch's casts, ml_dtypes' types."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from reference import decoder, minifloat, philox
from reference.bound import bound
from reference.encoder import INT_LAYOUT, ReferenceCodec
from reference.spec import BLOCK, FORMATS, Q_MAX

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, 0xFFFFFFFFFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: int, expected: tuple[int, ...]) -> None:
    """The known-answer vectors published with the Random123 library."""
    assert tuple(philox.philox4x32(np.array([counter], np.uint64), key)[0]) == expected
    assert decoder.philox4x32(counter, (key & 0xFFFFFFFF, key >> 32)) == expected


def test_checksums_and_hashes_known_answers() -> None:
    """CRC-32C's check value and iSCSI vectors; FNV-1a's published examples."""
    assert decoder.crc32c(b"123456789") == 0xE3069283
    assert decoder.crc32c(bytes(32)) == 0x8A9136AA
    assert decoder.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert philox.fnv1a32(b"") == 0x811C9DC5
    assert philox.fnv1a32(b"foobar") == 0xBF9CF968


def test_uniform_lanes() -> None:
    """Element i's number: word k / 2 of counter i / 8, low half first; any range sees the same ones."""
    words = philox.philox4x32(np.array([[5, 1, 7, 9]], np.uint64), 11)[0]
    halves = [half for word in words for half in (int(word) & 0xFFFF, int(word) >> 16)]
    first = (1 << 35) + 5 * 8
    assert philox.uniform16(first, 8, 11, 7, 9).tolist() == halves
    whole = philox.uniform16(0, 100, 3, 1, 2)
    assert np.array_equal(philox.uniform16(37, 40, 3, 1, 2), whole[37:77])


def test_hadamard_signs_agree() -> None:
    """The encoder's and the decoder's sign rules were written apart."""
    for seed in (0, 1, 2**63 + 12345):
        assert np.array_equal(philox.tile_signs(seed), decoder.hadamard_signs(seed))


def _around(values: np.ndarray) -> np.ndarray:
    """Every value, every midpoint, and the binary32 numbers next to them, of both signs."""
    middle = (values[1:] + values[:-1]) / 2
    points = np.concatenate([values, middle]).astype(np.float32)
    above, below = (np.nextafter(points, np.float32(to)) for to in (np.inf, 0))
    points = np.concatenate([points, above, below])
    random = np.random.default_rng(1).uniform(0, values[-1], 4000).astype(np.float32)
    points = np.concatenate([points, random])
    points = points[points <= np.float32(values[-1])]
    return np.concatenate([points, -points])


def _codes(kind: minifloat.MiniFloat, points: np.ndarray) -> np.ndarray:
    codes = minifloat.nearest(np.abs(points), kind, kind.largest)
    return codes | np.where(np.signbit(points), kind.sign_bit, 0)


def test_minifloats_round_like_torch() -> None:
    """float8_e4m3fn, float8_e5m2, bfloat16 and float16 casts of torch, within the finite range."""
    for kind, dtype, bits in [
        (minifloat.E4M3, torch.float8_e4m3fn, torch.uint8),
        (minifloat.E5M2, torch.float8_e5m2, torch.uint8),
        (minifloat.BF16, torch.bfloat16, torch.int16),
        (minifloat.FP16, torch.float16, torch.int16),
    ]:
        points = _around(kind.values)
        theirs = torch.from_numpy(points).to(dtype).view(bits).numpy().astype(np.int64)
        assert np.array_equal(_codes(kind, points), theirs & (2 * kind.sign_bit - 1)), kind.name


def test_minifloats_round_like_ml_dtypes() -> None:
    """float4_e2m1fn, float8_e4m3fn and float8_e5m2 of ml_dtypes, within the finite range."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for kind, dtype in [
        (minifloat.E2M1, ml_dtypes.float4_e2m1fn),
        (minifloat.E4M3, ml_dtypes.float8_e4m3fn),
        (minifloat.E5M2, ml_dtypes.float8_e5m2),
    ]:
        points = _around(kind.values)
        theirs = points.astype(dtype).view(np.uint8).astype(np.int64)
        assert np.array_equal(_codes(kind, points), theirs), kind.name


def test_decoder_tables() -> None:
    """Every code of e4m3 and e5m2 against torch, of e2m1 against the page."""
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    for table, dtype in [(decoder.E4M3, torch.float8_e4m3fn), (decoder.E5M2, torch.float8_e5m2)]:
        assert np.array_equal(table, codes.view(dtype).float().numpy(), equal_nan=True)
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert decoder.E2M1.tolist() == magnitudes + [-m for m in magnitudes]
    assert not np.signbit(decoder.E2M1[8])


@pytest.mark.parametrize("name", sorted(INT_LAYOUT))
def test_packing_round_trip(name: str) -> None:
    """Any codes, packed by the encoder, come back from the decoder's own unpacking."""
    bias, pack = INT_LAYOUT[name]
    q_max = Q_MAX[name]
    levels = np.random.default_rng(2).integers(-q_max, q_max + 1, (50, BLOCK[name]))
    u = (levels + 3) // 2 if name == "int2" else levels + bias
    want = 2 * u - 3 if name == "int2" else levels
    assert np.array_equal(decoder.SCALED[name][1](pack(u)), want.astype(np.float32))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("options", ["", ":rounding=stochastic:seed=9"])
def test_stochastic_rounding_is_unbiased(name: str, options: str) -> None:
    """The mean over many calls comes to the value (nearest rounding's does not: the test can fail)."""
    if name == "fp32":
        pytest.skip("fp32 is not rounded")
    x = np.random.default_rng(3).standard_normal(512).astype(np.float32)
    if name == "fp16":
        x = (x * np.float32(2.0**-12)).astype(np.float32)
    codec = ReferenceCodec(name + options)
    calls = 300
    total = sum(codec.decode(codec.encode(x, call=call), len(x)).astype(np.float64) for call in range(calls))
    step = bound(name + ":rounding=stochastic", x)
    # Six standard errors of a rounding within one step; elements at the very edge of a block may saturate.
    off = np.abs(total / calls - x) / (step / np.sqrt(calls) * 3)
    if options:
        assert np.mean(off > 1) < 0.01
    else:
        assert np.mean(off > 1) > 0.2


def test_bound_tells_broken_codecs_from_right_ones() -> None:
    """A per-element bound, unlike a mean relative error of 4 %, fails on codecs that are slightly wrong."""
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(8192) * 10.0 ** rng.integers(-3, 1, 8192)).astype(np.float32)
    for name in FORMATS:
        codec = ReferenceCodec(name)
        data = bytearray(codec.encode(x))
        right = codec.decode(bytes(data), len(x)).astype(np.float64)
        assert (np.abs(right - x) <= bound(name, x)).all()
        if name == "fp32":
            continue
        swapped = right.copy()  # two elements of one block changed places
        i = int(np.abs(x[:16]).argmax())
        j = int(np.abs(x[:16]).argmin())
        swapped[i], swapped[j] = right[j], right[i]
        assert not (np.abs(swapped - x) <= bound(name, x)).all()
        assert np.abs(swapped - x).sum() < np.abs(right - x).sum() + 0.04 * np.abs(x).sum()
    # Truncating instead of rounding costs int8 up to a whole step.
    scale = np.repeat(np.abs(x.reshape(-1, 128)).max(axis=1) / 127, 128)
    truncated = np.trunc(x / scale) * scale
    assert np.abs(truncated - x).mean() < 0.04 * np.abs(x).mean()
    assert not (np.abs(truncated - x) <= bound("int8", x)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_finite_values_stay_finite(name: str) -> None:
    """At the ends of binary32's range too: scales and codes saturate."""
    largest = np.finfo(np.float32).max
    x = np.array([largest, -largest, largest / 3, 1e38, 2.0**-149, -(2.0**-126), 0, -0.0] * 40, np.float32)
    for rounding in ("", ":rounding=stochastic"):
        for scale in ("", ":scale=search"):
            codec = ReferenceCodec(name + rounding + scale)
            assert np.isfinite(codec.decode(codec.encode(x), len(x))).all()
    for value in (2.0**-149, 2.0**-130):
        tiny = np.full(300, value, np.float32)
        back = ReferenceCodec(name).decode(ReferenceCodec(name).encode(tiny), 300)
        assert (np.abs(back.astype(np.float64) - tiny) <= bound(name, tiny)).all()


def test_decoder_refuses_what_is_wrong() -> None:
    """Lengths, codec text and every field of a message's header."""
    with pytest.raises(ValueError, match="expected 130"):
        decoder.decode("int8", b"123", 5)
    with pytest.raises(ValueError, match="expected one of"):
        decoder.decode("int9", b"", 0)
    payload = b"abc"
    crc, agreement = decoder.crc32c(payload), 0xFEDCBA9876543210
    head = struct.pack("<IBBHIIQIIQI", decoder.MAGIC, 1, 1, 4, 2, crc, 7, 3, 9, agreement, 2 << 24 | 5)
    message = head + struct.pack("<I", decoder.crc32c(head)) + payload
    header, body = decoder.parse_message(message)
    assert body == payload
    assert header == decoder.Header(1, 4, 2, crc, 7, 3, 9, agreement, 2, 5)
    for bit in range(8 * len(message)):
        broken = bytearray(message)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"magic|version|header CRC|payload CRC"):
            decoder.parse_message(bytes(broken))
    with pytest.raises(ValueError, match="payload length"):
        decoder.parse_message(message[:-1])
    with pytest.raises(ValueError, match="length"):
        decoder.parse_message(message[:47])


def test_decoder_command_line(tmp_path, capsys) -> None:
    """Printing, --npy, and a plain error for a file of the wrong length."""
    x = np.array([1, -2, 0.5], np.float32)
    file = tmp_path / "codes"
    file.write_bytes(ReferenceCodec("bf16").encode(x))
    assert decoder.main(["bf16", str(file), "3"]) == 0
    assert capsys.readouterr().out == "1.0\n-2.0\n0.5\n"
    assert decoder.main(["bf16", str(file), "3", "--npy", str(tmp_path / "out.npy")]) == 0
    assert np.array_equal(np.load(tmp_path / "out.npy"), x)
    assert decoder.main(["bf16", str(file), "4"]) == 1
    assert "expected 8" in capsys.readouterr().err
