#!/usr/bin/env python3
"""Write the golden files of wire format version 1, by the independent reference encoder.

    python tests/golden/generate.py [FOLDER]

A file of an existing version never changes: a difference here is a change of the wire format. Bits are
hexadecimal, little-endian bytes in order; ``inputs.json`` holds float32 inputs, ``<format>.json`` what
becomes of them, ``messages.json`` headers and agreement hashes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

from reference import decoder  # noqa: E402
from reference.encoder import ReferenceCodec  # noqa: E402
from reference.message import Agreement, agreement_hash, build_message  # noqa: E402
from reference.spec import BLOCK, FORMATS, Q_MAX, UNSCALED  # noqa: E402

F32 = NDArray[np.float32]
LARGEST = float(np.finfo(np.float32).max)


def from_bits(*bits: int) -> list[float]:
    """Values by their binary32 bits."""
    return np.array(bits, np.uint32).view(np.float32).tolist()


def segment(rng: np.random.Generator, special: list[float], scale: float = 1.0) -> F32:
    """128 elements that begin with the special ones, in every third place."""
    out = (rng.standard_normal(128) * scale).astype(np.float32)
    out[: 3 * len(special) : 3] = special
    return out


def special_values() -> F32:
    """One tile's worth of what goes wrong: each 128 elements (a whole block of every format) tell one story."""
    rng = np.random.default_rng(20261130)
    inf, nan = float("inf"), float("nan")
    payload_nan = from_bits(0xFFC00001, 0x7F800001, 0x7FFFFFFF)
    signed_zeros = np.zeros(128, np.float32)
    signed_zeros[::2] = -0.0
    denormal = from_bits(1, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00400000, 0x00800000, 0x80800001)
    only_infinite = np.zeros(128, np.float32)
    only_infinite[[3, 70]] = inf, -inf
    return np.concatenate(
        [
            signed_zeros,
            segment(rng, denormal, 1e-39),
            segment(rng, denormal, 1e-36),
            segment(rng, [LARGEST, -LARGEST, 0.0, -0.0, LARGEST / 2], 1e38),
            segment(rng, from_bits(0x7F7FFFFE, 0xFF7FFFFD, 0x7F000000, 0x7F400000), 1e36),
            segment(rng, [nan]),
            segment(rng, [inf]),
            segment(rng, [-inf, nan, inf, *payload_nan]),
            np.full(128, nan, np.float32),
            only_infinite,
            segment(rng, [65504.0, 65519.99, 65520.0, -65536.0, 6e-8, 2.9e-8, 3e-8], 100.0),
            segment(rng, from_bits(0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF)),
            (rng.standard_normal(128) * 10.0 ** rng.integers(-6, 3, 128)).astype(np.float32),
            segment(rng, [])[:5],
        ]
    ).astype(np.float32)


def ties(name: str) -> F32:
    """Values half-way between two of the format's, in blocks whose scale is a power of two."""
    if name in UNSCALED:
        values = np.array(from_bits(*(0x3F800000 + 0x800 * k for k in range(64))))
    elif name.startswith("int"):
        values = np.arange(-2 * Q_MAX[name], 2 * Q_MAX[name] + 1) / 2.0
    else:
        table = {"mxfp4": decoder.E2M1, "nvfp4": decoder.E2M1, "fp8_e5m2": decoder.E5M2}.get(name, decoder.E4M3)
        positive = np.sort(table[np.isfinite(table) & (table >= 0)].astype(np.float64))
        values = np.concatenate([positive, (positive[1:] + positive[:-1]) / 2])
    block = max(BLOCK[name], 16)
    rows = []
    for first in range(0, len(values), block - 1):
        row = np.zeros(block)
        part = values[first : first + block - 1]
        row[1 : 1 + len(part)] = part
        row[0] = Q_MAX.get(name, 1)
        rows.append(row)
        rows.append(-row)
    # nvfp4: the tile's largest makes g = 1, so that a block of absmax 6 has scale 1.
    out = np.concatenate([*rows, np.full(block, 2688.0)] if name == "nvfp4" else rows)
    return out.astype(np.float32)


def two_tiles() -> F32:
    """A full tile and part of a second."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal(4096 + 37) * np.repeat(10.0 ** rng.uniform(-5, 2, 130), 32)[: 4096 + 37]
    return x.astype(np.float32)


def common_inputs() -> dict[str, F32]:
    """Inputs for every format."""
    return {
        "one": np.array([-1.7], np.float32),
        "seven": np.array([1, -2, 3.5, 0, -0.0, 1e-3, 100], np.float32),
        "special": special_values(),
        "two_tiles": two_tiles(),
    }


def cases_of(name: str) -> list[dict[str, Any]]:
    """Which codec texts and positions a format's file holds, and of what input."""
    plain = ["one", "seven", "special", "ties", "two_tiles"]
    cases: list[dict[str, Any]] = [{"codec": name, "input": one} for one in plain]
    cases += [{"codec": f"{name}:nonfinite=zero", "input": "special"}]
    cases += [{"codec": f"hadamard+{name}", "input": one} for one in ("one", "special", "two_tiles")]
    cases += [{"codec": f"hadamard+{name}:size=128:seed=1", "input": "two_tiles"}]
    cases += [{"codec": f"hadamard+{name}:size=256:seed=18446744073709551615", "input": "two_tiles"}]
    if name in ("mxfp4", "nvfp4"):
        cases += [{"codec": f"{name}:scale=search", "input": one} for one in ("special", "ties", "two_tiles")]
        cases += [{"codec": f"{name}:rounding=stochastic:scale=search:seed=3", "input": "two_tiles"}]
    if name != "fp32":
        position = {"key": "layer.3.wq", "call": 41, "source": 2, "element": 3 * 4096}
        cases += [
            {"codec": f"{name}:rounding=stochastic", "input": "seven"},
            {"codec": f"{name}:rounding=stochastic", "input": "special"},
            {"codec": f"{name}:rounding=stochastic:seed=123456789012345678", "input": "two_tiles", **position},
            {
                "codec": f"{name}:rounding=stochastic:seed=5",
                "input": "seven",
                "key": "schlüssel",
                "call": 4294967295,
                "source": -1,
                "element": (1 << 40),
            },
            {"codec": f"hadamard+{name}:rounding=stochastic:seed=9", "input": "seven"},
        ]
    return cases


def format_file(name: str, inputs: dict[str, F32]) -> dict[str, Any]:
    """The content of one format's file."""
    inputs = {**inputs, "ties": ties(name)}
    out = []
    for case in cases_of(name):
        codec, x = ReferenceCodec(case["codec"]), inputs[case["input"]]
        position = {"key": "", "call": 0, "source": 0, "element": 0, **case}
        data = codec.encode(x, **{field: position[field] for field in ("key", "call", "source", "element")})
        decoded = codec.decode(data, len(x))
        out.append(
            {
                **position,
                "count": len(x),
                "encoded": data.hex(),
                "decoded_sha256": hashlib.sha256(decoded.astype("<f4").tobytes()).hexdigest(),
            }
        )
    return {"format": name, "version": 1, "ties": inputs["ties"].astype("<f4").tobytes().hex(), "cases": out}


def messages_file() -> dict[str, Any]:
    """Headers, and the hashes that they carry."""
    agreements = [
        Agreement(verb=1, op=0, root=0, dtype=0, counts=(1000,), codec="fp8_e4m3", keys=("",)),
        Agreement(
            verb=1, op=1, root=0, dtype=1, counts=(1, 0, 4097), codec="hadamard+int4", keys=("a", "b", "ü")
        ),
        Agreement(verb=5, op=0, root=3, dtype=12, counts=(7,), codec="", keys=("",)),
    ]
    payload = ReferenceCodec("fp8_e4m3").encode(np.arange(10, dtype=np.float32)).hex()
    carried = agreement_hash(agreements[0])
    headers = [
        {"kind": 1, "flags": 0, "source": 0, "sequence": 0, "count": 10, "part": 1 << 24, "payload": payload},
        {
            "kind": 1,
            "flags": 4,
            "source": 3,
            "sequence": 1 << 33,
            "count": 10,
            "part": 2 << 24 | 5,
            "payload": payload,
        },
        {"kind": 2, "flags": 2, "source": 1, "sequence": 7, "count": 0, "part": 1 << 24, "payload": ""},
        {
            "kind": 3,
            "flags": 0,
            "source": 2,
            "sequence": 7,
            "count": 0,
            "part": 0,
            "payload": b"all_reduce".hex(),
        },
        {"kind": 4, "flags": 0, "source": 1, "sequence": 2, "count": 0, "part": 0, "payload": ""},
    ]
    return {
        "version": 1,
        "agreements": [{**one.__dict__, "hash": f"{agreement_hash(one):016x}"} for one in agreements],
        "messages": [
            {
                **fields,
                "agreement": f"{carried:016x}",
                "message": build_message(agreement=carried, **fields).hex(),
            }
            for fields in headers
        ],
    }


def golden_files() -> dict[str, str]:
    """File name to content."""
    inputs = common_inputs()
    files: dict[str, Any] = {f"{name}.json": format_file(name, inputs) for name in FORMATS}
    files["inputs.json"] = {name: x.astype("<f4").tobytes().hex() for name, x in inputs.items()}
    files["messages.json"] = messages_file()
    return {name: json.dumps(content, indent=1, ensure_ascii=False) + "\n" for name, content in files.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for file_name, text in golden_files().items():
        (folder / file_name).write_text(text, encoding="utf-8")
