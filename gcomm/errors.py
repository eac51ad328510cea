"""What can go wrong. Every error carries ``rank``, the rank at fault where one is known.

After a :class:`MismatchError` or a :class:`NonFiniteError` the communicator goes on; after a
:class:`TimeoutError`, a :class:`PeerLostError` or an :class:`AbortedError` it is closed, and the process and
its other communicators go on.
"""

from __future__ import annotations

import builtins

__all__ = [
    "AbortedError",
    "ClosedError",
    "CodecError",
    "DictionaryDesync",
    "DtypeError",
    "GcommError",
    "InternalError",
    "InvalidArgumentError",
    "MismatchError",
    "NonFiniteError",
    "OutOfMemoryError",
    "PeerLostError",
    "TimeoutError",
    "UnsupportedError",
]


class GcommError(Exception):
    """The base of all errors that gcomm raises.

    Attributes
    ----------
    rank : int or None
        The rank at fault (lost, late, or disagreeing) in its communicator, None where no single one is.
    """

    rank: int | None

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[type[GcommError], tuple[str, int | None]]:
        return type(self), (str(self), self.rank)


class InvalidArgumentError(GcommError, ValueError):
    """An argument is wrong. Nothing was sent."""


class DtypeError(GcommError, TypeError):
    """An argument has a type, or an array an element type, that the call does not take. Nothing was sent."""


class MismatchError(GcommError):
    """Ranks made different calls. All of them get the same text, and the communicator goes on."""


class TimeoutError(GcommError, builtins.TimeoutError):
    """A deadline passed. The communicator is closed."""


class PeerLostError(GcommError):
    """A peer ended, or its connection broke. The communicator is closed."""


class CodecError(GcommError, ValueError):
    """A codec's text is wrong, or bytes cannot be decoded."""


class DictionaryDesync(GcommError):  # noqa: N818 (the name is part of the public interface)
    """The two ends of a dictionary stream lost step."""


class AbortedError(GcommError):
    """The communicator was aborted, here or by a peer. It is closed."""


class ClosedError(GcommError):
    """The communicator was closed before the call."""


class UnsupportedError(GcommError, NotImplementedError):
    """Valid, but not built or not offered here."""


class OutOfMemoryError(GcommError, MemoryError):
    """The core could not get the memory that it needs."""


class InternalError(GcommError):
    """A mistake in gcomm itself."""


class NonFiniteError(GcommError, FloatingPointError):
    """Some rank had a NaN or an Inf, and the codec says ``nonfinite=raise``. The communicator goes on."""


# By gcomm_result, whose numbers are pinned in gcomm.h.
_CLASSES: dict[int, type[GcommError]] = {
    1: InvalidArgumentError,
    2: MismatchError,
    3: TimeoutError,
    4: PeerLostError,
    5: CodecError,
    6: DictionaryDesync,
    7: AbortedError,
    8: ClosedError,
    9: UnsupportedError,
    10: OutOfMemoryError,
    11: InternalError,
    12: NonFiniteError,
}


def from_result(result: int, text: str, rank: int) -> GcommError:
    """The exception for a result of the C library; the extension calls it."""
    return _CLASSES.get(result, InternalError)(text, None if rank < 0 else rank)
