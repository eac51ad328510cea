"""Golden files of wire format version 1: the library, the reference and the independent decoder agree."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_codec import ISAS, NativeCodec, difference
from numpy.typing import NDArray
from reference import decoder
from reference.encoder import ReferenceCodec
from reference.message import Agreement, agreement_hash, build_message
from reference.spec import FORMATS

import gcomm

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def _load(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def _floats(text: str) -> NDArray[np.float32]:
    return np.frombuffer(bytes.fromhex(text), "<f4")


def _cases(name: str) -> list[tuple[dict[str, Any], NDArray[np.float32]]]:
    file = _load(name)
    inputs = {"ties": file["ties"], **_load("inputs")}
    assert file["version"] == 1
    return [(case, _floats(inputs[case["input"]])) for case in file["cases"]]


def _position(case: dict[str, Any]) -> dict[str, Any]:
    return {field: case[field] for field in ("key", "call", "source", "element")}


def _digest(values: NDArray[Any]) -> str:
    return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()


def test_every_codec_has_a_golden_file() -> None:
    files = {path.stem for path in GOLDEN.glob("*.json")} - {"inputs", "messages"}
    assert files == {row.name for row in gcomm.codecs()} == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_reference_reproduces_golden(name: str) -> None:
    for case, x in _cases(name):
        codec = ReferenceCodec(case["codec"])
        assert codec.encode(x, **_position(case)).hex() == case["encoded"], case["codec"]
        assert _digest(codec.decode(bytes.fromhex(case["encoded"]), len(x))) == case["decoded_sha256"]
        assert len(x) == case["count"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMATS)
def test_library_reproduces_golden(name: str, isa: str) -> None:
    for case, x in _cases(name):
        codec = NativeCodec(case["codec"], isa)
        golden = bytes.fromhex(case["encoded"])
        where = f"{case['codec']} of {case['input']} on {isa}: "
        assert (problem := difference(codec.encode(x, **_position(case)), golden)) == "", where + problem
        decoded = codec.decode(golden, len(x))
        if _digest(decoded) != case["decoded_sha256"]:
            pytest.fail(where + difference(decoded, ReferenceCodec(case["codec"]).decode(golden, len(x))))


def test_messages() -> None:
    """Headers and agreement hashes, built and taken apart by two programs that share no code."""
    file = _load("messages")
    for row in file["agreements"]:
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k != "hash"}
        assert f"{agreement_hash(Agreement(**fields)):016x}" == row["hash"]
    for row in file["messages"]:
        fields = {k: v for k, v in row.items() if k not in ("agreement", "message")}
        agreement = int(row["agreement"], 16)
        assert build_message(agreement=agreement, **fields).hex() == row["message"]
        header, payload = decoder.parse_message(bytes.fromhex(row["message"]))
        assert payload.hex() == row["payload"]
        assert header.agreement == agreement
        assert header.phase << 24 | header.chunk == row["part"]
        for field in ("kind", "flags", "source", "sequence", "count"):
            assert getattr(header, field) == row[field]
