"""What this build of gcomm offers."""

from __future__ import annotations

from dataclasses import dataclass

from . import _native

__all__ = ["Row", "codecs", "isas", "transports"]


@dataclass(frozen=True)
class Row:
    """One thing that gcomm may offer.

    Attributes
    ----------
    name : str
    available : bool
    reason : str
        Why it isn't available, or a remark; may be empty.
    bits_per_element : float
        Codecs only: of long arrays, scales included.
    block : int
        Codecs only: elements that share a scale.
    """

    name: str
    available: bool
    reason: str
    bits_per_element: float = 0.0
    block: int = 0


def codecs() -> list[Row]:
    """The wire formats, in the order of docs/wire-format.md."""
    return [Row(*row) for row in _native.codec_rows()]


def transports() -> list[Row]:
    """What can carry the bytes."""
    return [Row(*row) for row in _native.transport_rows()]


def isas() -> list[Row]:
    """The instruction sets that codecs are compiled for."""
    return [Row(*row) for row in _native.isa_rows()]
