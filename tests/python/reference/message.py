"""Messages and agreement hashes, built from sections 3 and 4 of the page."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from . import decoder


@dataclass(frozen=True)
class Agreement:
    """What all ranks have to agree on in one call."""

    verb: int
    op: int
    root: int
    dtype: int
    counts: tuple[int, ...]
    codec: str
    keys: tuple[str, ...]


def fnv1a64(data: bytes) -> int:
    """FNV-1a, 64 bit."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def agreement_hash(agreement: Agreement) -> int:
    """Section 4: numbers of eight bytes, texts behind their length."""

    def number(value: int) -> bytes:
        return struct.pack("<Q", value & 0xFFFFFFFFFFFFFFFF)

    def text(value: str) -> bytes:
        return number(len(value.encode())) + value.encode()

    a = agreement
    fields = [number(value) for value in (a.verb, a.op, a.root, a.dtype, len(a.counts), *a.counts)]
    return fnv1a64(b"".join([*fields, text(a.codec), *(text(key) for key in a.keys)]))


_CRC_TABLE = np.zeros(256, np.uint32)
for _index in range(256):
    _value = _index
    for _ in range(8):
        _value = (_value >> 1) ^ (0x82F63B78 * (_value & 1))
    _CRC_TABLE[_index] = _value


def crc32c(data: bytes) -> int:
    """CRC-32C by a table of 256 entries."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ int(_CRC_TABLE[(crc ^ byte) & 255])
    return crc ^ 0xFFFFFFFF


def build_message(
    *,
    kind: int,
    flags: int,
    source: int,
    sequence: int,
    count: int,
    part: int,
    agreement: int,
    payload: str | bytes,
) -> bytes:
    """Header and payload (bytes, or their hexadecimal text)."""
    body = bytes.fromhex(payload) if isinstance(payload, str) else payload
    checksum = crc32c(body) if flags & decoder.FLAG_CRC else 0
    head = b"".join(
        [
            b"GCM1",
            bytes([1, kind]),
            flags.to_bytes(2, "little"),
            source.to_bytes(4, "little"),
            checksum.to_bytes(4, "little"),
            sequence.to_bytes(8, "little"),
            len(body).to_bytes(4, "little"),
            count.to_bytes(4, "little"),
            agreement.to_bytes(8, "little"),
            part.to_bytes(4, "little"),
        ]
    )
    return head + crc32c(head).to_bytes(4, "little") + body
