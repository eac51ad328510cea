"""Arguments that are not arrays: operations, deadlines, codecs, keys."""

from __future__ import annotations

import datetime
import math
import sys
from typing import Any

from ._arrays import Where

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
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        where.mistyped(f"expected seconds or a datetime.timedelta, got {type(timeout).__name__}")
    if not (seconds > 0 and math.isfinite(seconds)):
        where.invalid(f"expected a positive, finite time, got {timeout!r}")
    return seconds


def parse_key(key: Any, where: Where) -> str | None:
    """A text without NUL characters, or None."""
    if key is None:
        return None
    if not isinstance(key, str):
        where.mistyped(f"expected a str, got {type(key).__name__}")
    if "\0" in key:
        where.invalid("a key can't hold NUL characters")
    return key


def parse_rank(rank: Any, size: int, where: Where) -> int:
    """A rank of the communicator."""
    if isinstance(rank, bool) or not isinstance(rank, int):
        where.mistyped(f"expected a rank, got {type(rank).__name__}")
    if not 0 <= rank < size:
        where.invalid(f"expected a rank from 0 to {size - 1}, got {rank}")
    return rank
