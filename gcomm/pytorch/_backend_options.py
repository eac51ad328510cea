"""What a group of the backend compresses, and how its ranks agree on that."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .._arguments import parse_int, parse_spec
from .._arrays import Where
from .._codec import Codec
from .._rendezvous import Deadline, exchange
from ..errors import CodecError, DtypeError, GcommError, InvalidArgumentError, MismatchError

__all__ = ["BackendOptions"]

# Smaller tensors are norms, losses, counts: what a program looks at. Those are exact.
_MIN_BYTES = 1 << 16
_TRANSPORTS = ("auto", "tcp", "torch")
_VERB = "init_process_group"
_HOOKS = "use gcomm.pytorch.ddp_hook or gcomm.pytorch.FSDPReduceScatter, which know the parameters' names"


@dataclass(frozen=True)
class BackendOptions:
    """``pg_options`` of ``init_process_group("gcomm", pg_options=...)`` and ``new_group``.

    Without any, groups take those of the default group, and the default group takes ``codec`` from the
    environment variable GCOMM_CODEC.

    Attributes
    ----------
    codec : str, Codec or None
        What large sums and averages travel in, as in :func:`gcomm.codec`. None, or "none": all is exact.
        Codecs that keep something for each tensor (``gift+``, ``ef=1``) are refused: a process group sees no
        names.
    min_bytes : int, optional
        Tensors of fewer bytes are exact. Not given: the codec's own option ``min_bytes``, else 65536.
    transport : {"auto", "tcp", "torch"}
        As in :meth:`gcomm.Communicator.from_torch`.
    """

    codec: str | Codec | None = "fp8_e4m3"
    min_bytes: int | None = None
    transport: str = "auto"


@dataclass(frozen=True)
class Settings:
    """Options that have been checked."""

    codec: str | None
    min_bytes: int
    transport: str


def settings_of(given: Any) -> Settings:
    """Settings from ``pg_options``, or from the environment."""
    options, source = _options(given)
    try:
        return _checked(options)
    except CodecError as error:
        raise CodecError(f"{_VERB}: {source}: {error}") from None


def agree(group: Any, given: Any, inherited: Settings | None, deadline: Deadline) -> Settings:
    """The group's settings. A rank's mistake is an error of all ranks, and so is a difference."""
    rank = group.rank()
    failure: GcommError | None = None
    settings = Settings(None, 0, "auto")
    try:
        settings = inherited if given is None and inherited is not None else settings_of(given)
    except GcommError as error:
        failure = error
    if group.size() > 1:
        mine = {"error": None if failure is None else str(failure), **asdict(settings)}
        everybody = exchange(group, mine, deadline, _VERB)
        if failure is None:
            _require_alike(everybody, rank)
    if failure is not None:
        raise failure
    return settings


def _require_alike(everybody: list[dict[str, Any]], rank: int) -> None:
    for at, each in enumerate(everybody):
        if each["error"] is not None:
            raise InvalidArgumentError(f"{_VERB}: rank {at} can't take part: {each['error']}", at)
    for field in fields(Settings):
        values = [each[field.name] for each in everybody]
        if any(value != values[0] for value in values):
            text = ", ".join(f"rank {at}: {value}" for at, value in enumerate(values))
            raise MismatchError(
                f"{_VERB}: the ranks' groups differ in {field.name} ({text}); give all of them the same "
                "GCOMM_CODEC or pg_options",
                rank,
            )


def _options(given: Any) -> tuple[BackendOptions, str]:
    where = Where(_VERB, "pg_options", None)
    if given is None:
        text = os.environ.get("GCOMM_CODEC", "").strip()
        if not text:
            return BackendOptions(), "the default codec"
        return BackendOptions(text), "environment variable GCOMM_CODEC"
    if isinstance(given, BackendOptions):
        return given, "pg_options"
    if isinstance(given, (str, Codec)):
        return BackendOptions(given), "pg_options"
    if isinstance(given, Mapping):
        known = [field.name for field in fields(BackendOptions)]
        for name in given:
            if name not in known:
                where.invalid(f"unknown option {name!r}; options are {', '.join(known)}")
        return BackendOptions(**given), "pg_options"
    return where.mistyped(
        f"expected gcomm.pytorch.BackendOptions, a dict of its attributes or a codec's text, got {given!r}"
    )


def _checked(options: BackendOptions) -> Settings:
    if options.transport not in _TRANSPORTS:
        raise InvalidArgumentError(
            f"{_VERB}: transport: expected one of {', '.join(_TRANSPORTS)}, got {options.transport!r}"
        )
    where = Where(_VERB, "min_bytes", None)
    least = None if options.min_bytes is None else parse_int(options.min_bytes, where, 0, 2**62)
    if options.codec is None or (isinstance(options.codec, str) and options.codec.lower() == "none"):
        return Settings(None, least or 0, options.transport)
    if isinstance(options.codec, str):
        spec = Codec(parse_spec(options.codec, where)).spec
    elif isinstance(options.codec, Codec):
        spec = options.codec.spec
    else:
        raise DtypeError(f"{_VERB}: codec: expected a str, a gcomm.Codec or None, got {options.codec!r}")
    if spec.startswith("gift+") or ":ef=1" in spec:
        what = "learns a transform for" if spec.startswith("gift+") else "keeps a residual for"
        raise CodecError(
            f"codec {spec!r} {what} each tensor by name, and a process group sees no names; {_HOOKS}"
        )
    own = re.search(r":min_bytes=(\d+)", spec)
    if least is None:
        least = int(own[1]) if own is not None else _MIN_BYTES
    return Settings(spec, least, options.transport)
