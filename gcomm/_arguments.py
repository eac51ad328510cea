"""Arguments that are not arrays: operations, deadlines, texts, numbers."""

from __future__ import annotations

import datetime
import math
import numbers
import operator
import sys
from typing import Any

from ._arrays import Where
from .errors import CodecError

SUM = 0
AVG = 1
_OPS = {"sum": SUM, "avg": AVG}


def parse_op(op: Any, where: Where) -> int:
    """``"sum"``, ``"avg"`` or torch's ReduceOp.SUM and .AVG."""
    number = None
    if isinstance(op, str):
        number = _OPS.get(op)
    elif "torch.distributed" in sys.modules:
        kinds = sys.modules["torch.distributed"].ReduceOp
        # Only of torch's types: its members equal plain numbers, too.
        if isinstance(op, kinds | type(kinds.SUM)):
            number = SUM if op == kinds.SUM else AVG if op == kinds.AVG else None
    if number is None:
        where.invalid(f"expected 'sum', 'avg', ReduceOp.SUM or ReduceOp.AVG, got {op!r}")
    return number


def parse_timeout(timeout: Any, where: Where) -> float | None:
    """Seconds from a number or a timedelta; None stays None."""
    if timeout is None:
        return None
    if isinstance(timeout, datetime.timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, numbers.Real) and not isinstance(timeout, bool):
        try:
            seconds = float(timeout)
        except OverflowError:
            seconds = math.inf
    else:
        where.mistyped(f"expected seconds or a datetime.timedelta, got {type(timeout).__name__}")
    if not (seconds > 0 and math.isfinite(seconds)):
        where.invalid(f"expected a positive, finite time, got {timeout!r}")
    return seconds


def parse_key(key: Any, where: Where) -> str | None:
    """A text that the core can hold, or None."""
    if key is None:
        return None
    if not isinstance(key, str):
        where.mistyped(f"expected a str, got {type(key).__name__}")
    if fault := _text_fault(key):
        where.invalid(f"expected a text, got {key!r}, which holds {fault}")
    return key


def parse_spec(spec: str, where: Where) -> str:
    """A codec's text; the core checks what it says."""
    if fault := _text_fault(spec):
        raise CodecError(f"the codec {spec!r} holds {fault}", where.rank)
    return spec


def _text_fault(text: str) -> str:
    """What a text holds that ends or can't be in a C string; "" if nothing."""
    if "\0" in text:
        return "a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    return ""


def plain_text(text: str) -> str:
    """A text for messages, with what a C string can't hold written out."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def parse_int(value: Any, where: Where, least: int, most: int) -> int:
    """A whole number of any library's, but no bool."""
    number = _whole(value, where, "an int")
    if number < least:
        where.invalid(f"expected {least} or more, got {number}")
    if number > most:
        where.invalid(f"expected at most {most}, got {number}")
    return number


def parse_rank(rank: Any, size: int, where: Where) -> int:
    """A rank of the communicator."""
    number = _whole(rank, where, "a rank")
    if not 0 <= number < size:
        where.invalid(f"expected a rank from 0 to {size - 1}, got {number}")
    return number


def _whole(value: Any, where: Where, what: str) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    return where.mistyped(f"expected {what}, got {type(value).__name__}")
