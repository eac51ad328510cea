#!/usr/bin/env python3
"""An independent decoder of gcomm's wire format, written from docs/wire-format.md alone.

It shares no code with the library and needs nothing but numpy. It favours being read over being fast: one
function a section of the page, one tile at a time.

    python tools/reference_decoder.py SPEC FILE COUNT             print the decoded values, one a line
    python tools/reference_decoder.py SPEC FILE COUNT --npy OUT   write them as a float32 .npy file
    python tools/reference_decoder.py SPEC FILE COUNT --message   FILE is a message: verify its header first
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

TILE = 4096
CANONICAL_NAN = np.uint32(0x7FC00000)

# Section 1: name -> (elements a block, bytes of its scale, bytes of its codes, bytes of a tile's scale)
FORMATS: dict[str, tuple[int, int, int, int]] = {
    "fp32": (1, 0, 4, 0),
    "bf16": (1, 0, 2, 0),
    "fp16": (1, 0, 2, 0),
    "fp8_e4m3": (128, 2, 128, 0),
    "fp8_e5m2": (128, 2, 128, 0),
    "int8": (128, 2, 128, 0),
    "int6": (64, 2, 48, 0),
    "int4": (64, 2, 32, 0),
    "int3": (32, 2, 12, 0),
    "int2": (32, 2, 8, 0),
    "mxfp8": (32, 1, 32, 0),
    "mxfp4": (32, 1, 16, 0),
    "nvfp4": (16, 1, 8, 4),
}


# ---- codec text ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """What a decoder has to know of a codec's text: the format, and the Hadamard size (0: none) and seed."""

    format: str
    hadamard: int = 0
    seed: int = 0


def parse_spec(text: str) -> Spec:
    """Read "[hadamard+]format[:option=value]..."; options that only matter to an encoder are passed over."""
    head, *options = text.split(":")
    *transform, name = head.split("+")
    if name not in FORMATS or transform not in ([], ["hadamard"]):
        raise ValueError(f"{text!r}: expected one of {', '.join(FORMATS)}, alone or behind 'hadamard+'")
    values = dict(option.split("=", 1) for option in options)
    size = int(values.get("size", "64")) if transform else 0
    if size not in (0, 64, 128, 256):
        raise ValueError(f"{text!r}: size is {size}, expected 64, 128 or 256")
    return Spec(name, size, int(values.get("seed", "0")))


def filled_count(spec: Spec, count: int) -> int:
    """Elements that the format sees: the range is filled up to whole Hadamard groups."""
    return count if not spec.hadamard else -(-count // spec.hadamard) * spec.hadamard


def tile_bytes(name: str, elements: int) -> int:
    """Encoded length of one tile."""
    block, scale, codes, tile_scale = FORMATS[name]
    return tile_scale + -(-elements // block) * (scale + codes)


def encoded_bytes(text: str, count: int) -> int:
    """Encoded length of a range of count elements."""
    spec = parse_spec(text)
    full, rest = divmod(filled_count(spec, count), TILE)
    return full * tile_bytes(spec.format, TILE) + (tile_bytes(spec.format, rest) if rest else 0)


# ---- scales and elements -------------------------------------------------------------------------------------


def canonical(values: F32) -> F32:
    """Every NaN becomes the canonical one."""
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = CANONICAL_NAN
    return bits.view(np.float32)


def small_float_table(exponent_bits: int, mantissa_bits: int) -> F32:
    """Values of all codes of a sign-exponent-mantissa format that has no special codes."""
    bias = 2 ** (exponent_bits - 1) - 1
    table = []
    for code in range(1 << (1 + exponent_bits + mantissa_bits)):
        mantissa = code & ((1 << mantissa_bits) - 1)
        exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
        sign = -1.0 if code >> (mantissa_bits + exponent_bits) else 1.0
        significand = (mantissa if exponent == 0 else mantissa + (1 << mantissa_bits)) / (1 << mantissa_bits)
        table.append(sign * significand * 2.0 ** (max(exponent, 1) - bias))
    return np.array(table, np.float32)


def e4m3_table() -> F32:
    """OCP E4M3: S.1111.111 is a NaN, there is no Inf."""
    table = small_float_table(4, 3)
    table[[0x7F, 0xFF]] = np.nan
    return table


def e5m2_table() -> F32:
    """OCP E5M2: all exponent bits set is Inf with a zero mantissa, else a NaN."""
    table = small_float_table(5, 2)
    for sign in (0x00, 0x80):
        table[sign + 0x7C] = -np.inf if sign else np.inf
        table[sign + 0x7D : sign + 0x80] = np.nan
    return table


def e2m1_table() -> F32:
    """Section 1.4: code 8 decodes to +0."""
    table = small_float_table(2, 1)
    table[8] = 0.0
    return table


E4M3, E5M2, E2M1 = e4m3_table(), e5m2_table(), e2m1_table()


def bf16_values(raw: U8) -> F32:
    """Two bytes each, the upper half of a binary32."""
    return (np.ascontiguousarray(raw).view("<u2").astype(np.uint32) << 16).view(np.float32)


def fp16_values(raw: U8) -> F32:
    """Two bytes each, binary16."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def fp32_values(raw: U8) -> F32:
    """Four bytes each, binary32."""
    return np.ascontiguousarray(raw).view("<f4").astype(np.float32)


def e8m0_values(raw: U8) -> F32:
    """Section 1.4: 2^(byte - 127), 255 is a NaN."""
    exponents = raw.astype(np.int32) - 127
    return np.where(raw == 255, np.float32(np.nan), np.ldexp(np.float32(1), exponents)).astype(np.float32)


# One function a packing. Codes come as (blocks, bytes a block); what goes back is (blocks, elements a block).


def levels_int8(codes: U8) -> F32:
    """Two's complement bytes."""
    return codes.view(np.int8).astype(np.float32)


def levels_int6(codes: U8) -> F32:
    """Low four bits in 32 bytes, high two bits in 16."""
    low = np.concatenate([codes[:, :32] & 15, codes[:, :32] >> 4], axis=1)
    high = np.concatenate([(codes[:, 32:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1)
    return (low | high << 4).astype(np.float32) - np.float32(32)


def levels_int4(codes: U8) -> F32:
    """Elements j and j + 32 share byte j."""
    return np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float32) - np.float32(8)


def levels_int3(codes: U8) -> F32:
    """Low two bits in 8 bytes, then one word of high bits."""
    low = np.concatenate([(codes[:, :8] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1)
    high = np.unpackbits(codes[:, 8:], axis=1, bitorder="little")
    return (low | high << 2).astype(np.float32) - np.float32(4)


def levels_int2(codes: U8) -> F32:
    """Four levels, -3, -1, 1 and 3."""
    u = np.concatenate([(codes >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1)
    return np.float32(2) * u.astype(np.float32) - np.float32(3)


def elements_e4m3(codes: U8) -> F32:
    """One byte each."""
    return E4M3[codes]


def elements_e5m2(codes: U8) -> F32:
    """One byte each."""
    return E5M2[codes]


def elements_e2m1(codes: U8) -> F32:
    """Neighbours share a byte, the even one in its low half."""
    return E2M1[np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)]


UNSCALED: dict[str, Callable[[U8], F32]] = {"fp32": fp32_values, "bf16": bf16_values, "fp16": fp16_values}
SCALED: dict[str, tuple[Callable[[U8], F32], Callable[[U8], F32]]] = {
    "fp8_e4m3": (bf16_values, elements_e4m3),
    "fp8_e5m2": (bf16_values, elements_e5m2),
    "int8": (bf16_values, levels_int8),
    "int6": (bf16_values, levels_int6),
    "int4": (bf16_values, levels_int4),
    "int3": (bf16_values, levels_int3),
    "int2": (bf16_values, levels_int2),
    "mxfp8": (e8m0_values, elements_e4m3),
    "mxfp4": (e8m0_values, elements_e2m1),
    "nvfp4": (elements_e4m3, elements_e2m1),
}


def decode_tile(name: str, data: U8, elements: int) -> F32:
    """Decode one tile: [tile scale][block scales][codes]."""
    if name in UNSCALED:
        return canonical(UNSCALED[name](data))
    _, scale_bytes, code_bytes, tile_scale_bytes = FORMATS[name]
    scale_of, elements_of = SCALED[name]
    body = data[tile_scale_bytes:]
    blocks = len(body) // (scale_bytes + code_bytes)
    scales = scale_of(body[: blocks * scale_bytes])
    if tile_scale_bytes:
        scales = scales * fp32_values(data[:tile_scale_bytes])
    values = elements_of(body[blocks * scale_bytes :].reshape(blocks, code_bytes)) * scales[:, None]
    values[~np.isfinite(scales)] = np.nan
    return canonical(values.reshape(-1)[:elements])


# ---- Hadamard transform --------------------------------------------------------------------------------------


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3")."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def hadamard_signs(seed: int) -> NDArray[np.bool_]:
    """True at each position of a tile whose element is negated."""
    key = (seed & 0xFFFFFFFF, seed >> 32)
    words = [philox4x32((group, 0, 0, 0x48414441), key) for group in range(TILE // 128)]
    return np.unpackbits(np.array(words, "<u4").view(np.uint8), bitorder="little").astype(bool)


def inverse_hadamard(values: F32, size: int, seed: int) -> F32:
    """Undo the transform of whole groups; values begin at a tile."""
    v = values.reshape(-1, size)
    stride = 1
    while stride < size:
        pairs = v.reshape(len(v), size // (2 * stride), 2, stride)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        v = np.stack([a + b, a - b], axis=2).reshape(-1, size)
        stride *= 2
    factor = {64: 0.125, 128: float.fromhex("0x1.6a09e6p-4"), 256: 0.0625}[size]
    out = (v * np.float32(factor)).reshape(-1)
    negate = np.resize(hadamard_signs(seed), len(out))
    return canonical(np.where(negate, -out, out))


def decode(text: str, data: bytes, count: int) -> F32:
    """Decode a range.

    Parameters
    ----------
    text : str
        Codec text, for instance ``"int4"`` or ``"hadamard+nvfp4:size=128:seed=7"``.
    data : bytes
        The encoded range, no header.
    count : int
        Number of elements.

    Returns
    -------
    float32 array, shape (count,)

    Raises
    ------
    ValueError
        If the text is unknown or the data has the wrong length.
    """
    spec = parse_spec(text)
    want = encoded_bytes(text, count)
    if len(data) != want:
        raise ValueError(f"{len(data)} bytes of {text!r}, expected {want} for {count} elements")
    raw = np.frombuffer(data, np.uint8)
    filled = filled_count(spec, count)
    parts = [np.empty(0, np.float32)]
    offset = 0
    with np.errstate(all="ignore"):
        for first in range(0, filled, TILE):
            elements = min(TILE, filled - first)
            length = tile_bytes(spec.format, elements)
            parts.append(decode_tile(spec.format, raw[offset : offset + length], elements))
            offset += length
        values = np.concatenate(parts)
        if spec.hadamard:
            values = inverse_hadamard(values, spec.hadamard, spec.seed)
    return values[:count]


# ---- messages ------------------------------------------------------------------------------------------------

HEADER = struct.Struct("<IBBHIIQIIQII")
HEADER_BYTES = 48
MAGIC = 0x314D4347
FLAG_RAW, FLAG_NONFINITE, FLAG_CRC, FLAG_LENGTHS = 1, 2, 4, 8


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit: reflected polynomial 0x82F63B78, initial and final complement."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@dataclass(frozen=True)
class Header:
    """Section 3, field by field; ``phase`` and ``chunk`` are the two halves of ``part``."""

    kind: int
    flags: int
    source: int
    payload_crc: int
    sequence: int
    payload_bytes: int
    count: int
    agreement: int
    phase: int
    chunk: int


def parse_message(message: bytes) -> tuple[Header, bytes]:
    """Verify a whole message.

    Returns
    -------
    (Header, bytes)
        The header and the payload.

    Raises
    ------
    ValueError
        Naming the field that is wrong: length, magic, version, kind, header CRC, payload length or payload CRC.
    """
    if len(message) < HEADER_BYTES:
        raise ValueError(f"length: {len(message)} bytes, a header alone has {HEADER_BYTES}")
    magic, version, kind, flags, source, payload_crc, *rest = HEADER.unpack_from(message)
    sequence, payload_bytes, count, agreement, part, crc = rest
    if magic != MAGIC:
        raise ValueError(f"magic: {magic:#010x}, expected {MAGIC:#010x}")
    if version != 1:
        raise ValueError(f"version: {version}, expected 1")
    if crc != crc32c(message[:44]):
        raise ValueError(f"header CRC: {crc:#010x}, expected {crc32c(message[:44]):#010x}")
    if kind not in (1, 2, 3, 4):
        raise ValueError(f"kind: {kind}, expected 1, 2, 3 or 4")
    payload = message[HEADER_BYTES:]
    if payload_bytes != len(payload):
        raise ValueError(f"payload length: {payload_bytes}, but {len(payload)} bytes follow the header")
    want = crc32c(payload) if flags & FLAG_CRC else 0
    if payload_crc != want:
        raise ValueError(f"payload CRC: {payload_crc:#010x}, expected {want:#010x}")
    phase, chunk = part >> 24, part & 0xFFFFFF
    fields = (kind, flags, source, payload_crc, sequence, payload_bytes, count, agreement, phase, chunk)
    return Header(*fields), payload


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Decode gcomm's wire format, independently of it.")
    parser.add_argument("spec", help="codec text, as in 'int4' or 'hadamard+nvfp4:size=128'")
    parser.add_argument("file", type=Path, help="encoded bytes")
    parser.add_argument("count", type=int, help="number of elements")
    parser.add_argument("--npy", type=Path, help="write a float32 .npy file instead of printing")
    parser.add_argument("--message", action="store_true", help="the file is a message of one piece")
    options = parser.parse_args(arguments)
    try:
        data = options.file.read_bytes()
        if options.message:
            header, data = parse_message(data)
            print(header, file=sys.stderr)
            if header.flags & (FLAG_RAW | FLAG_LENGTHS):
                raise ValueError("flags: the payload is raw or has a length table")
        values = decode(options.spec, data, options.count)
    except (OSError, ValueError) as error:
        print(f"reference_decoder: {error}", file=sys.stderr)
        return 1
    if options.npy:
        np.save(options.npy, values)
    else:
        sys.stdout.writelines(f"{value!s}\n" for value in values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
