"""The library's codecs against the independent reference, bit for bit, on every instruction set there is."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_codec import ISAS, NativeCodec, difference
from numpy.typing import NDArray
from reference.bound import bound
from reference.encoder import ReferenceCodec, from_f32, to_f32
from reference.spec import BLOCK, FORMATS, UNSCALED

import gcomm

TILE = 4096
SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
DTYPES = ("float32", "float16", "uint16")

TRANSFORMS = ("", "hadamard+")
OPTIONS = (
    "",
    ":rounding=stochastic",
    ":rounding=stochastic:seed=18446744073709551615",
    ":scale=search",
    ":rounding=stochastic:scale=search:seed=77",
    ":nonfinite=zero",
)


def _accepted(text: str) -> bool:
    try:
        NativeCodec(text)
    except gcomm.errors.CodecError:
        return False
    return True


def _texts(name: str) -> list[str]:
    """Every combination of transform and options that the library takes for a format."""
    sizes = {"": [""], "hadamard+": ["", ":size=128:seed=3", ":size=256:seed=4"]}
    texts = [
        transform + name + size + option
        for transform in TRANSFORMS
        for size in sizes[transform]
        for option in OPTIONS
        if not ("seed" in size and "seed" in option)
    ]
    return [text for text in texts if _accepted(text)]


def _sizes(name: str) -> list[int]:
    """The classes that broke others: nothing, less than a block, one past a block, odd tiles."""
    block = BLOCK[name]
    return sorted(
        {0, 1, 2, 7, block - 1, block, block + 1, 255, 257, 1009, TILE - 1, TILE, TILE + 1, 2 * TILE + 37}
    )


def _data(rng: np.random.Generator, count: int, kind: str) -> NDArray[np.float32]:
    """Inputs of many sorts: plain, wide, sparse, constant, at both ends of the range, any bits at all."""
    if kind == "bits":
        return rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    normal = rng.standard_normal(count)
    if kind == "wide":
        normal = normal * 10.0 ** rng.uniform(-30, 30, count)
    elif kind == "sparse":
        normal = normal * (rng.random(count) < 0.02)
    elif kind == "grid":
        normal = np.round(normal * 8) / 8 * 2.0 ** rng.integers(-3, 4)
    elif kind == "tiny":
        normal = normal * 2.0 ** rng.integers(-149, -118)
    elif kind == "huge":
        normal = np.clip(normal, -3, 3) * 1e38
    elif kind == "top":
        normal = np.where(normal > -1, 1.0, normal) * float(np.finfo(np.float32).max)
        normal = np.clip(normal, -np.finfo(np.float32).max, np.finfo(np.float32).max)
    elif kind == "specials":
        where = rng.random(count)
        normal = np.where(
            where < 0.01, np.nan, np.where(where < 0.02, np.inf, np.where(where < 0.03, -np.inf, normal))
        )
    return normal.astype(np.float32)


KINDS = ("normal", "wide", "sparse", "grid", "tiny", "huge", "specials", "bits")


def _as(x: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Rounded to the dtype, as an input would arrive."""
    with np.errstate(all="ignore"):
        return (
            x if dtype == "float32" else from_f32(x, {"uint16": "bfloat16"}.get(dtype, dtype), saturate=False)
        )


def _check(text: str, x: NDArray[Any], reference: ReferenceCodec | None = None, **position: Any) -> None:
    """Encoded bytes, decoded values of all dtypes, and accumulation: the library's and the reference's."""
    reference = reference or ReferenceCodec(text)
    want = reference.encode(x, **position)
    for isa in ISAS:
        native = NativeCodec(text, isa)
        where = f"{text}, {len(x)} x {x.dtype}, {isa}, {position}: "
        assert native.wire_bytes(len(x)) == len(want) == reference.wire_bytes(len(x)), where
        data = native.encode(x, **position)
        assert (problem := difference(data, want)) == "", where + "encode: " + problem
    _check_decode(text, want, len(x), reference)


def _check_decode(text: str, data: bytes, count: int, reference: ReferenceCodec) -> None:
    values = reference.decode(data, count)
    with np.errstate(all="ignore"):
        expected = {
            dtype: from_f32(values, {"uint16": "bfloat16"}.get(dtype, dtype), saturate=True) for dtype in DTYPES
        }
        accumulator = np.linspace(-3, 3, count, dtype=np.float32)
        total = accumulator + values
    finite = ~np.isnan(total)  # a NaN in a sum is made canonical when the sum is written, not before
    for isa in ISAS:
        native = NativeCodec(text, isa)
        where = f"{text}, {count} elements, {isa}: decode to "
        for dtype in DTYPES:
            problem = difference(native.decode(data, count, dtype), expected[dtype])
            assert problem == "", where + dtype + ": " + problem
        got = native.decode_accumulate(data, accumulator)
        assert difference(got[finite], total[finite]) == "", where + "accumulator"
        assert np.isnan(got[~finite]).all()


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_and_options(name: str) -> None:
    """Every size class under every option, float32."""
    rng = np.random.default_rng(5)
    for text in _texts(name):
        reference = ReferenceCodec(text)
        for i, count in enumerate(_sizes(name)):
            _check(text, _data(rng, count, KINDS[i % len(KINDS)]), reference)


@pytest.mark.parametrize("name", FORMATS)
def test_inputs_and_dtypes(name: str) -> None:
    """Every sort of input in every dtype."""
    rng = np.random.default_rng(6)
    for text in (name, f"{name}:rounding=stochastic", f"hadamard+{name}"):
        reference = ReferenceCodec(text)
        for kind in KINDS:
            for dtype in DTYPES:
                _check(text, _as(_data(rng, 1000, kind), dtype), reference)


@pytest.mark.parametrize("name", FORMATS)
def test_every_value_of_16_bits(name: str) -> None:
    """All bf16 and all fp16 bit patterns, alone in their block (in a block of equals) and mixed."""
    codes = np.arange(65536, dtype=np.uint16)
    mixed = np.random.default_rng(7).permutation(codes)
    for x in (mixed, mixed.view(np.float16)):
        _check(name, x)


@pytest.mark.parametrize("name", FORMATS)
def test_near_ties(name: str) -> None:
    """Values at, just below and just above the middle between two codes, at several powers of two."""
    reference = ReferenceCodec(name)
    rng = np.random.default_rng(8)
    count = 4 * TILE
    base = reference.decode(reference.encode(_data(rng, count, "normal")), count)
    others = reference.decode(reference.encode(_data(rng, count, "normal")), count)
    middle = ((base.astype(np.float64) + others) / 2).astype(np.float32)
    for x in (middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))):
        for power in (1.0, 2.0**-20, 2.0**100):
            _check(name, (x * np.float32(power)).astype(np.float32), reference)


@pytest.mark.parametrize("name", FORMATS)
def test_arbitrary_bytes_decode_alike(name: str) -> None:
    """Any bytes of the right length: the same values as the independent decoder's, NaN bits too."""
    rng = np.random.default_rng(9)
    for text in (name, f"hadamard+{name}:size=128:seed=2"):
        reference = ReferenceCodec(text)
        for count in _sizes(name):
            for repeat in range(3):
                length = reference.wire_bytes(count)
                data = rng.integers(0, 256, length, dtype=np.uint8)
                if repeat == 1:
                    data[rng.random(length) < 0.3] = 0xFF
                elif repeat == 2:
                    data[rng.random(length) < 0.5] = 0x7F
                if text.startswith("hadamard"):
                    # Sums of Inf and NaN give NaN all the same, but keep some groups finite.
                    data[: length // 2] &= 0x3F
                _check_decode(text, data.tobytes(), count, reference)


@pytest.mark.parametrize("name", FORMATS)
def test_wrong_lengths_are_refused(name: str) -> None:
    for text in (name, f"hadamard+{name}"):
        codec = NativeCodec(text)
        length = codec.wire_bytes(100)
        for wrong in (0, 1, length - 1, length + 1, 2 * length):
            with pytest.raises(gcomm.errors.CodecError, match=str(length)):
                codec.decode(bytes(wrong), 100)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fp32"])
def test_stochastic_positions(name: str) -> None:
    """Key, call, source, seed and the place in the tensor each choose other numbers, the reference's."""
    rng = np.random.default_rng(10)
    x = _data(rng, 700, "normal")
    seen = set()
    for position in [
        {},
        {"key": "a"},
        {"key": "ä/β"},
        {"call": 1},
        {"call": 0xFFFFFFFF},
        {"source": 3},
        {"source": -1},
        {"element": TILE},
        {"element": 1 << 36},
        {"element": (1 << 62) + 5 * TILE},
    ]:
        text = f"{name}:rounding=stochastic"
        _check(text, x, **position)
        seen.add(NativeCodec(text).encode(x, **position))
    assert len(seen) == 10


@pytest.mark.parametrize("isa", ISAS)
def test_tiles_are_encoded_alone(isa: str) -> None:
    """The encoding of a range is the concatenation of those of its tiles, wherever it is cut."""
    x = _data(np.random.default_rng(11), 3 * TILE + 100, "wide")
    for name in FORMATS:
        for text in (name, f"{name}:rounding=stochastic", f"hadamard+{name}:size=256"):
            codec = NativeCodec(text, isa)
            parts = [codec.encode(x[first : first + TILE], element=first) for first in range(0, len(x), TILE)]
            assert codec.encode(x) == b"".join(parts)


@pytest.mark.parametrize("name", FORMATS)
def test_bound_of_every_element(name: str) -> None:
    """What comes back is within the format's bound of what went in, element by element."""
    rng = np.random.default_rng(12)
    for text in (name, f"{name}:rounding=stochastic", f"{name}:scale=search", f"hadamard+{name}"):
        if not _accepted(text):
            continue
        codec = NativeCodec(text)
        for kind in ("normal", "wide", "sparse", "grid", "tiny", "huge", "specials"):
            if kind in ("huge", "specials") and text.startswith("hadamard"):
                continue  # sums beyond binary32
            for dtype in DTYPES:
                x = _as(_data(rng, 3000, kind), dtype)
                value = to_f32(x)
                back = codec.decode(codec.encode(x), len(x)).astype(np.float64)
                with np.errstate(all="ignore"):
                    off = np.abs(back - value)
                limit = bound(text, value)
                ok = (off <= limit) | np.isinf(limit)
                assert ok.all(), f"{text} {kind} {dtype}: {value[~ok][:3]} became {back[~ok][:3]}"
                if text == name in UNSCALED and dtype == {"bf16": "uint16", "fp16": "float16"}.get(
                    name, "float32"
                ):
                    assert np.array_equal(back, value, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fp32"])
def test_state_of_a_key(name: str) -> None:
    """Codec.encode with a key: residuals are carried on and calls counted, as the reference does by hand."""
    rng = np.random.default_rng(14)
    for text in (f"{name}:ef=1", f"{name}:rounding=stochastic:ef=1:seed=2", f"hadamard+{name}:ef=1"):
        reference = ReferenceCodec(text)
        codec = gcomm.codec(text)
        residuals = {"a": np.zeros(5003, np.float32), "b": np.zeros(5003, np.float32)}
        calls = {"a": 0, "b": 0}
        for key in "aababbaaa":
            # A NaN, and sums beyond FLT_MAX with what the call before left, must not stay in a residual.
            x = _data(rng, 5003, ["normal", "specials", "top", "top", "normal"][min(calls[key], 4)])
            want = reference.encode(x, key=key, call=calls[key], source=-1, residual=residuals[key])
            problem = difference(codec.encode(x, key=key), want)
            assert problem == "", f"{text}, call {calls[key]} of key {key}: {problem}"
            calls[key] += 1
        assert all(np.isfinite(residual).all() for residual in residuals.values())
        assert residuals["a"].any()


any_floats = st.lists(
    st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, 3.4e38, 1e-45]), min_size=0, max_size=300
)


@pytest.mark.parametrize("name", FORMATS)
@SETTINGS
@given(values=any_floats, text=st.sampled_from(["", ":rounding=stochastic", ":scale=search"]), data=st.data())
def test_any_floats(name: str, values: list[float], text: str, data: st.DataObject) -> None:
    """Whatever hypothesis thinks of."""
    if not _accepted(name + text):
        text = ""
    transform = data.draw(st.sampled_from(["", "hadamard+"]))
    _check(transform + name + text, np.array(values, np.float32))


@pytest.mark.parametrize("name", FORMATS)
@SETTINGS
@given(data=st.data())
def test_any_bytes(name: str, data: st.DataObject) -> None:
    """Decoding bytes of hypothesis's choice."""
    count = data.draw(st.integers(1, 70))
    reference = ReferenceCodec(name)
    length = reference.wire_bytes(count)
    raw = data.draw(st.binary(min_size=length, max_size=length))
    _check_decode(name, raw, count, reference)


@pytest.mark.parametrize("isa", ISAS)
def test_isa_is_forced_by_the_environment(isa: str) -> None:
    """GCOMM_ISA chooses the driver, and the codec says which one runs."""
    program = "from gcomm import _native; print(_native.Codec('int8', None).isa)"
    environment = {**os.environ, "GCOMM_ISA": isa, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == isa


def test_flush_to_zero_of_the_host_does_not_matter() -> None:
    """Host programs turn denormals off; the library keeps them."""
    torch = pytest.importorskip("torch")
    x = _data(np.random.default_rng(13), 2000, "tiny")
    want = {name: ReferenceCodec(name).encode(x) for name in FORMATS}
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        for isa in ISAS:
            for name in FORMATS:
                codec = NativeCodec(name, isa)
                assert codec.encode(x) == want[name]
                decoded = codec.decode(want[name], len(x)).view(np.uint32).tolist()
                torch.set_flush_denormal(False)
                assert decoded == ReferenceCodec(name).decode(want[name], len(x)).view(np.uint32).tolist()
                torch.set_flush_denormal(True)
    finally:
        torch.set_flush_denormal(False)
