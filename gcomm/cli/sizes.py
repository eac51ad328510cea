"""Sizes as people write them (8, 8K, 64M, 1G; powers of 1024) and sweeps over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    _IntParam = click.ParamType[int]
else:  # older versions of click have no type argument
    _IntParam = click.ParamType

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str) -> int:
    """Bytes of ``"8"``, ``"8K"``, ``"64M"``, ``"64MiB"`` or ``"1G"``; units are powers of 1024.

    Raises
    ------
    ValueError
        The text is no such size.
    """
    cleaned = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = cleaned[-1:] if cleaned[-1:].isalpha() else ""
    digits = cleaned.removesuffix(unit) if unit else cleaned
    if unit not in _UNITS or not digits.isascii() or not digits.isdigit():
        raise ValueError(f"{text!r} is not a size; write bytes such as 8, 8K, 64M or 1G")
    return int(digits) * _UNITS[unit]


def format_bytes(value: float) -> str:
    """A short text of a number of bytes, as ``"64 MiB"``; exact where it is a whole number of units."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} B"


def sweep(minimum: int, maximum: int, factor: int, step: int) -> list[int]:
    """Sizes from ``minimum`` to ``maximum``: times ``factor`` each, or plus ``step`` where that is not 0.

    Raises
    ------
    ValueError
        The sweep would be empty or would not end.
    """
    if minimum > maximum:
        raise ValueError(f"the smallest size ({minimum}) is larger than the largest ({maximum})")
    if step == 0 and minimum == 0 and maximum > 0:
        raise ValueError("a sweep by a factor cannot start at 0; give --stepbytes")
    sizes = [minimum]
    while True:
        following = sizes[-1] + step if step else sizes[-1] * factor
        if following > maximum or following == sizes[-1]:
            return sizes
        sizes.append(following)


class ByteSize(_IntParam):
    """A click option that takes a size such as 64M and gives bytes."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes of ``value``, or a usage error."""
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
