"""A stability controller in a reduction: called between the sum and its release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import _native
from ._arrays import Array, Where
from ._codec import Codec
from ._gnmr_controller import Controller
from .registry import codecs

__all__ = ["RUNGS", "Control", "formats"]

RUNGS = ("fp8_e4m3", "bf16", "fp32")
"""The wire formats that a recovery goes up, from any that has fewer bits."""

_KEPT = ("crc", "min_bytes", "nonfinite")  # options that concern the values rather than the format


def formats(codec: str | Codec, levels: int) -> list[str | Codec]:
    """A codec and what its keys travel in under recovery, at most ``levels``; the last is the highest."""
    spec = codec if isinstance(codec, str) else codec.spec
    head, *options = spec.split(":")
    bits = {row.name: row.bits_per_element for row in codecs()}
    own = bits.get(head.split("+")[-1], 0.0)
    kept = [option for option in options if option.split("=")[0] in _KEPT]
    higher = [":".join([name, *kept]) for name in RUNGS if bits[name] > own]
    return [codec, *higher][:levels]


class Control:
    """One call's keys under a controller."""

    def __init__(self, controller: Any, keys: Any, verb: str, rank: int) -> None:
        if not isinstance(controller, Controller):
            Where(verb, "controller", rank).mistyped(
                f"expected a gcomm.gnmr.Controller, got {type(controller).__name__}"
            )
        where = Where(verb, "key" if verb == "all_reduce" else "keys", rank)
        if keys is None or keys == [None]:
            where.invalid("needed with a controller, which knows arrays by their keys")
        if isinstance(keys, (str, bytes)) or not isinstance(keys, Sequence):
            where.mistyped(f"expected a list of keys, got {type(keys).__name__}")
        if any(key is None for key in keys):
            where.invalid("needed with a controller, which knows arrays by their keys")
        if not all(isinstance(key, str) for key in keys):
            where.mistyped("expected texts")
        self._units: list[str] = list(keys)
        if len(set(self._units)) < len(self._units):
            where.invalid("expected different keys: a controller knows arrays by them")
        self._controller = controller

    def codec(self, codec: Any) -> Any:
        """What the call travels in: the codec at the highest level that any of its keys is at."""
        if not isinstance(codec, (str, Codec)):
            return codec
        level = max(map(self._controller._level_now, self._units), default=0)
        if level == 0:
            return codec
        choice = formats(codec, self._controller.config["levels"])
        return choice[min(level, len(choice) - 1)]

    def finisher(self, outputs: Sequence[Array]) -> Callable[[], None]:
        """What looks at the sums and acts on them, in place; once each, also if interrupted and run again."""
        waiting = list(zip(self._units, outputs, strict=True))
        actions: dict[str, Any] = {}
        observed = False

        def finish() -> None:
            nonlocal observed
            if not observed:
                norms = {
                    unit: _native.norm(array.pointer, int(array.dtype), array.count) for unit, array in waiting
                }
                observed = True
                actions.update(self._controller._observe_next(norms))
            while waiting:
                unit, array = waiting.pop()
                action = actions.get(unit)
                if action is not None and action.scale != 1:
                    _native.scale(array.pointer, int(array.dtype), array.count, action.scale)

        return finish
