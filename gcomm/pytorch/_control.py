"""A stability controller under DistributedDataParallel: units are the parameters, by name."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from .. import _native
from .._codec import Codec
from .._codec import codec as _make
from .._control import formats
from .._gnmr_controller import Controller
from ..errors import InvalidArgumentError
from ._bucket import DTYPES, Part, Plan, Row
from .stats import Statistics

__all__ = ["Control", "Turn"]


class Turn:
    """A bucket's turn with the controller: buckets are observed in the order in which they were started, which
    is the same on all ranks, whatever completes first.
    """

    def __init__(self, step: int, before: Turn | None, lock: threading.Lock) -> None:
        self.step = step
        self._lock = lock  # of all turns of a controller
        self._comes = threading.Event()
        self._ended = False
        self._over = False
        self._after: Turn | None = None
        with lock:
            if before is None or before._over:
                self._comes.set()
            else:
                before._after = self

    def wait(self) -> None:
        """Until all buckets before have had their turns."""
        self._comes.wait()

    def end(self) -> None:
        """The bucket does no more; where its turn has not come yet, it will pass it by."""
        with self._lock:
            self._ended = True
            turn: Turn | None = self
            while turn is not None and turn._ended and turn._comes.is_set():
                turn._over = True
                turn = turn._after
                if turn is not None:
                    turn._comes.set()


# Who has a controller: with two the order of their observations would differ from rank to rank.
_owners: weakref.WeakKeyDictionary[Controller, weakref.ref[Control]] = weakref.WeakKeyDictionary()


def _claim(controller: Controller, control: Control) -> None:
    owner = _owners.get(controller)
    if owner is not None and owner() is not None:
        raise InvalidArgumentError(
            "DDPState: controller: another DDPState has it, and their observations would come in another order "
            "on every rank; give each a controller of its own"
        )
    _owners[controller] = weakref.ref(control)


class Control:
    """What of a plan travels how in a step, and what becomes of the averages."""

    def __init__(self, controller: Controller, statistics: Statistics) -> None:
        _claim(controller, self)
        self._controller = controller
        self._statistics = statistics
        self._codecs: dict[tuple[int, int], Codec] = {}  # by the part's codec, and the level
        self._held: list[Any] = []  # those codecs: as long as they live no other has their id
        self._alone: dict[tuple[str, int, int], Part] = {}  # by name, codec and level
        self._last: Turn | None = None
        self._lock = threading.Lock()

    def next_turn(self, step: int) -> Turn:
        self._last = Turn(step, self._last, self._lock)
        return self._last

    def calls(self, plan: Plan, base: int, step: int) -> Iterator[tuple[Part, list[Row], list[int]]]:
        """A part, the rows of it that one call takes, and their places in the part.

        A parameter under recovery has a call of its own, behind that of its part.
        """
        for part in plan.parts:
            rows = part.rows(base)
            levels = [self._level(name, step) for name in part.names] if part.codec is not None else []
            if not any(levels):
                yield part, rows, list(range(len(rows)))
                continue
            rest = [i for i, level in enumerate(levels) if level == 0]
            if rest:
                yield part, [rows[i] for i in rest], rest
            for i, level in enumerate(levels):
                if level > 0:
                    yield self._part_of(part, i, level), [rows[i]], [0]

    def act(self, plan: Plan, buffer: torch.Tensor, step: int) -> None:
        """Observes the bucket's averages, and clips or zeroes them."""
        dtype = int(DTYPES[buffer.dtype])
        base = buffer.data_ptr()
        places = {
            name: (base + at, count)
            for part in plan.parts
            for name, (at, count, *_) in zip(part.names, part.places, strict=True)
        }
        norms = {name: _native.norm(pointer, dtype, count) for name, (pointer, count) in places.items()}
        for name, action in self._controller.observe(norms, step).items():
            if action.scale != 1 and name in places:
                pointer, count = places[name]
                _native.scale(pointer, dtype, count, action.scale)

    def _level(self, name: str, step: int) -> int:
        return self._controller._level_at(name, step)

    def _part_of(self, part: Part, index: int, level: int) -> Part:
        key = part.names[index], id(part.codec), level
        alone = self._alone.get(key)
        if alone is None:
            codec = self._codec(part.codec, level)
            alone = self._alone[key] = Part(codec, [part.names[index]])
            alone.sums = self._statistics.group(alone.names, codec.spec)
        return alone

    def _codec(self, codec: Any, level: int) -> Codec:
        found = self._codecs.get((id(codec), level))
        if found is None:
            self._held.append(codec)
            choice = formats(codec, self._controller.config["levels"])
            found = self._codecs[id(codec), level] = _make(choice[min(level, len(choice) - 1)])
        return found
