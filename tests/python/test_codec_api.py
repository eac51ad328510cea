"""gcomm.codec, the registries and state; bits are the business of test_codec_reference.py."""

from __future__ import annotations

import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from ranks import run_local

import gcomm
from gcomm import Codec, Communicator, errors

NAMES = [
    *("fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "int6", "int4", "int3", "int2"),
    *("mxfp8", "mxfp4", "nvfp4"),
]


def test_registries() -> None:
    rows = gcomm.codecs()
    assert [row.name for row in rows] == NAMES
    assert all(row.available for row in rows)
    assert {row.name: row.bits_per_element for row in rows}["int4"] == pytest.approx(4.25)
    assert {row.name: row.block for row in rows}["nvfp4"] == 16
    transports = {row.name: row for row in gcomm.transports()}
    assert {"local", "tcp"} <= set(transports)
    for row in [*transports.values(), *gcomm.isas()]:
        assert row.available or row.reason
    assert gcomm.isas()[0].name == "scalar"
    assert gcomm.__version__.count(".") == 2


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_and_length(name: str) -> None:
    codec = gcomm.codec(name)
    assert codec.spec == name
    assert repr(codec) == f"gcomm.codec('{name}')"
    row = next(row for row in gcomm.codecs() if row.name == name)
    x = torch.randn(10000, generator=torch.Generator().manual_seed(1))
    data = codec.encode(x)
    assert isinstance(data, bytes)
    assert len(data) == codec.wire_bytes(10000)
    assert codec.wire_bytes(1 << 20) * 8 / (1 << 20) == pytest.approx(row.bits_per_element)
    out = torch.empty(10000)
    assert codec.decode(data, out) is out
    assert (out - x).abs().max() <= {"int2": 2.0, "int3": 1.0}.get(name, 0.6)
    again = np.empty(10000, np.float32)
    codec.decode(bytearray(data), again)
    codec.decode(np.frombuffer(data, np.uint8), again)
    codec.decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), again)
    assert np.array_equal(again, out.numpy())
    total = np.ones(10000, np.float32)
    assert codec.decode_accumulate(data, total) is total
    assert np.array_equal(total, 1 + again)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_inputs(dtype: torch.dtype) -> None:
    codec = gcomm.codec("int8")
    x = torch.arange(12.0).reshape(3, 4).to(dtype)
    assert codec.encode(x.t()) == codec.encode(x.t().contiguous())
    assert codec.encode(x.expand(2, 3, 4)) == codec.encode(torch.cat([x, x]))
    memory = torch.zeros(8, dtype=dtype)
    codec.decode(codec.encode(x.flatten()[:4]), memory[::2])
    assert memory[1::2].tolist() == [0] * 4
    assert memory[::2].float().sub(torch.arange(4.0)).abs().max() < 0.05
    if dtype is torch.bfloat16:
        y = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)
        assert codec.encode(y) == codec.encode(x)
    assert codec.encode(torch.empty(0, dtype=dtype)) == b""


BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("spec type", lambda: gcomm.codec(8), TypeError, "codec: argument 'spec': expected a str, got int"),  # type: ignore[arg-type]
    ("name", lambda: gcomm.codec("int5"), errors.CodecError, "int5"),
    ("empty", lambda: gcomm.codec(""), errors.CodecError, "."),
    ("transform", lambda: gcomm.codec("fourier+int8"), errors.CodecError, "fourier"),
    ("option", lambda: gcomm.codec("int8:colour=red"), errors.CodecError, "colour"),
    ("value", lambda: gcomm.codec("int8:seed=x"), errors.CodecError, "seed"),
    ("value error", lambda: gcomm.codec("int5"), ValueError, "int5"),
    ("isa", lambda: Codec("int8", isa="mmx"), errors.GcommError, "mmx"),
    (
        "float64",
        lambda: gcomm.codec("int8").encode(np.ones(3)),
        TypeError,
        "encode: argument 'x': codecs encode float32, .* got float64",
    ),
    ("ints", lambda: gcomm.codec("int8").encode(torch.ones(3).int()), TypeError, "got int32"),
    ("key", lambda: gcomm.codec("int8").encode(torch.ones(3), key=1), TypeError, "encode: argument 'key'"),  # type: ignore[arg-type]
    ("short", lambda: gcomm.codec("int8").decode(b"123", torch.empty(3)), errors.CodecError, "."),
    ("long", lambda: gcomm.codec("fp32").decode(b"1" * 13, torch.empty(3)), errors.CodecError, "."),
    (
        "data",
        lambda: gcomm.codec("fp32").decode(torch.ones(3), torch.empty(3)),
        TypeError,
        "decode: argument 'data': expected contiguous bytes",
    ),
    (
        "out read-only",
        lambda: gcomm.codec("fp32").decode(b"1" * 12, b"1" * 12),
        TypeError,
        "decode: argument 'out'",
    ),
    (
        "out dtype",
        lambda: gcomm.codec("fp32").decode(b"1" * 12, np.ones(3)),
        TypeError,
        "codecs decode to .* got float64",
    ),
    (
        "accumulate",
        lambda: gcomm.codec("fp32").decode_accumulate(b"1" * 12, torch.ones(3).half()),
        TypeError,
        "contiguous float32",
    ),
    (
        "count",
        lambda: gcomm.codec("fp32").wire_bytes(-1),
        ValueError,
        "wire_bytes: argument 'count': expected 0 or more",
    ),
    ("count type", lambda: gcomm.codec("fp32").wire_bytes(1.0), TypeError, "expected an int, got float"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "kind", "text"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_codec_calls(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_canonical_text() -> None:
    assert (
        gcomm.codec("int8:min_bytes=0:rounding=stochastic").spec
        == gcomm.codec("int8:rounding=stochastic:min_bytes=0").spec
    )
    assert gcomm.codec("int8:rounding=nearest").spec == "int8"
    codec = gcomm.codec("int4")
    assert gcomm.codec(codec) is codec


@pytest.mark.parametrize(
    "spec", ["int4:ef=1", "int8:rounding=stochastic:seed=3", "hadamard+int4:ef=1:rounding=stochastic"]
)
def test_saved_state_goes_on_with_the_same_bits(spec: str) -> None:
    inputs = [torch.randn(5000, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    straight, codec = gcomm.codec(spec), gcomm.codec(spec)
    expected = [straight.encode(x, "w") for x in inputs]
    assert expected[0] != straight.encode(inputs[0], "w")
    assert [codec.encode(x, "w") for x in inputs[:2]] == expected[:2]
    file = io.BytesIO()
    torch.save(codec.state_dict(), file)
    file.seek(0)
    resumed = gcomm.codec(spec)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert [resumed.encode(x, "w") for x in inputs[2:]] == expected[2:]
    # Without a key nothing is remembered.
    assert resumed.encode(inputs[0]) == resumed.encode(inputs[0])


def test_bad_state_is_refused() -> None:
    codec = gcomm.codec("int4:ef=1")
    codec.encode(torch.randn(100), "w")
    state = codec.state_dict()
    for change, text in (
        ({"version": 2}, "expected version 1, got 2"),
        ({"spec": "int8"}, "expected spec 'int4:ef=1', got 'int8'"),
        ({"state": state["state"][:-1]}, "."),
        ({"state": b"nonsense"}, "."),
    ):
        with pytest.raises(errors.CodecError, match=text):
            gcomm.codec("int4:ef=1").load_state_dict({**state, **change})


def _trained(comm: Communicator, saved: Any, steps: list[int], codec: str) -> Any:
    if saved is not None:
        comm.load_state_dict(saved[comm.rank])
    results = []
    for step in steps:
        x = torch.randn(20000, generator=torch.Generator().manual_seed(10 * step + comm.rank))
        comm.all_reduce(x, "avg", codec=codec, key="w")
        results.append(x.numpy().tobytes())
    return results, comm.state_dict()


def test_communicator_state_goes_on_with_the_same_bits() -> None:
    spec = "int4:ef=1:rounding=stochastic"
    straight = run_local(_trained, 2, None, [0, 1, 2, 3], spec)
    first = run_local(_trained, 2, None, [0, 1], spec)
    second = run_local(_trained, 2, [state for _, state in first], [2, 3], spec)
    for whole, before, after in zip(straight, first, second, strict=True):
        assert before[0] + after[0] == whole[0]
    fresh = run_local(_trained, 2, None, [2, 3], spec)
    assert fresh[0][0] != second[0][0]


def test_communicator_state_of_another_rank_is_refused() -> None:
    first, second = Communicator.local(2)
    with pytest.raises(errors.CodecError, match="expected rank 1, got 0"):
        second.load_state_dict(first.state_dict())
    (alone,) = Communicator.local(1)
    with pytest.raises(errors.CodecError, match="expected size 1, got 2"):
        alone.load_state_dict(first.state_dict())
    for comm in (first, second, alone):
        comm.close()


def _one_key_two_models(comm: Communicator, own: bool) -> bytes:
    codecs: list[Any] = [gcomm.codec("int4:ef=1") for _ in range(2)] if own else ["int4:ef=1"] * 2
    result = b""
    for step in range(2):
        for model, codec in enumerate(codecs):
            x = torch.randn(20000, generator=torch.Generator().manual_seed(100 * model + step))
            comm.all_reduce(x, codec=codec, key="w")
            result += x.numpy().tobytes()
    return result


def test_codec_objects_keep_models_apart() -> None:
    apart = run_local(_one_key_two_models, 2, True)
    together = run_local(_one_key_two_models, 2, False)
    assert apart[0] == apart[1]
    assert together[0] == together[1]
    assert apart[0] != together[0]
