"""The stability controller: units by name, their counts and their log around the C library's."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._arguments import parse_int
from ._arrays import Where
from ._gnmr_log import Log, finite, number

__all__ = ["Action", "Controller"]

_STATE_VERSION = 1
_KINDS = ("none", "clip", "skip", "recover")
_REASONS = ("none", "rho", "delta", "nonfinite")
_COUNTED = ("clips", "skips", "recoveries", "refusals")
_LONGEST = 2**30
_Row = tuple[int, int, int, int, float, int, float, float]


@dataclasses.dataclass(frozen=True)
class Action:
    """What is done about a unit at a step.

    Attributes
    ----------
    kind : "clip", "skip" or "recover"
        clip: its gradient of this step is multiplied by ``scale``, and it is under recovery from the next step
        on. skip: it is left out of this step. recover: it is under recovery, or comes under it from the next
        step on where there is nothing to clip.
    level : int
        How far up its list of wire formats it travels under recovery; 0: not under recovery.
    scale : float
        tau * mean / norm for clip, 0 for skip, 1 for recover.
    until : int
        The last step under recovery; this step where there is none.
    reason : "rho", "delta" or "nonfinite"
        Why, or why the recovery began.
    rho, delta : float
        Of the unit's last observation; Inf for a norm that is not finite.
    """

    kind: str
    level: int
    scale: float
    until: int
    reason: str
    rho: float
    delta: float


class Controller:
    """Compares each unit's gradient norm with its own history, and says what to do.

    Parameters
    ----------
    tau : float
        A unit is at risk when rho, its norm over the mean of its history, is above it. At least 1.
    tau_delta : float
        Or when rho is above the mean of its last ``window`` values by more than this. At least 1.
    window : int
        Observations that both means go back.
    warmup : int
        Finite norms that a unit must have had before it can be at risk.
    max_ops : int
        The hard budget: units clipped or under recovery at once. At least 1.
    lock : int
        Steps that a recovery lasts. At least 1.
    levels : int
        Wire formats in a unit's list; recovery goes at most to the last.
    log : path, optional
        Everything observed and decided is appended to it as JSON lines. One rank's is enough.

    Raises
    ------
    gcomm.errors.InvalidArgumentError, gcomm.errors.DtypeError
        An argument is out of its range, or not a number.

    Controllers that see the same norms in the same order decide the same. Methods may be called from several
    threads, one after the other.
    """

    def __init__(
        self,
        *,
        tau: float,
        tau_delta: float,
        window: int,
        warmup: int,
        max_ops: int,
        lock: int,
        levels: int = 4,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        self._config: dict[str, Any] = {
            "tau": _threshold(tau, "tau"),
            "tau_delta": _threshold(tau_delta, "tau_delta"),
            "window": parse_int(window, Where("Controller", "window", None), 1, 2**20),
            "warmup": parse_int(warmup, Where("Controller", "warmup", None), 0, _LONGEST),
            "max_ops": parse_int(max_ops, Where("Controller", "max_ops", None), 1, _LONGEST),
            "lock": parse_int(lock, Where("Controller", "lock", None), 1, _LONGEST),
            "levels": parse_int(levels, Where("Controller", "levels", None), 1, 2**20),
        }
        self._native = _native.Gnmr(**self._config)
        self._lock = threading.RLock()
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._keys: tuple[str, ...] = ()  # of the last observe(), and their numbers
        self._numbers: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._refused: dict[str, Action] = {}
        self._unit_steps = 0
        self._counts: dict[str, dict[str, int]] = {}
        self._log = None if log is None else Log(log, self._config)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that the controller was made with, the log apart."""
        return dict(self._config)

    @property
    def step(self) -> int:
        """The step of the last :meth:`observe`; -1 before the first."""
        return self._native.step

    @property
    def units(self) -> tuple[str, ...]:
        """The units that are known."""
        return tuple(self._ids)

    @property
    def refused(self) -> dict[str, Action]:
        """Units at risk in the last :meth:`observe` for which the budget had no room, the largest rho first.

        With what would have been done to them. A skip is done all the same; only its recovery was refused.
        """
        return dict(self._refused)

    def observe(self, norms: Mapping[str, float], step: int | None = None) -> dict[str, Action]:
        """Takes the norms of a step after its reduction, and says what to do before the optimiser's step.

        Parameters
        ----------
        norms : mapping of str to float
            Gradient norms by unit. A unit that is not known yet is added. NaN and Inf are a unit to skip.
        step : int, optional
            The step's number, not below the last; the last plus one if not given. The same step again (DDP's
            buckets, say) takes units that were not yet seen at it.

        Returns
        -------
        dict of str to Action
            Every unit acted on now and every unit under recovery, those not in ``norms`` too.

        Raises
        ------
        gcomm.errors.InvalidArgumentError
            A norm is negative, time runs backwards, or a unit's norm of this step was observed already. Nothing
            has changed then.
        gcomm.errors.DtypeError
            ``norms`` is not a mapping of texts to numbers.
        """
        where = Where("observe", "norms", None)
        if not isinstance(norms, Mapping):
            where.mistyped(f"expected a mapping of units to norms, got {type(norms).__name__}")
        when = -1 if step is None else parse_int(step, Where("observe", "step", None), 0, 2**62)
        for kind in set(map(type, norms.values())):
            real = issubclass(kind, numbers.Real)
            if kind in (bool, str, bytes) or not (real or hasattr(kind, "__float__")):
                where.mistyped(f"expected numbers, got a {kind.__name__}")
            if issubclass(kind, numbers.Complex) and not real:
                where.mistyped(f"expected real numbers, got a {kind.__name__}")
        try:
            values = np.fromiter(norms.values(), np.float64, len(norms))
        except (RuntimeError, TypeError, ValueError) as error:  # an array or a tensor of several elements
            where.mistyped(f"expected one number for each unit: {error}")
        with self._lock:
            added = self._look_up(tuple(norms), where)
            try:
                rows, refused = self._native.observe(
                    self._numbers.ctypes.data, values.ctypes.data, len(values), when
                )
            except Exception:
                self._forget(added)
                raise
            self._unit_steps += len(values)
            actions = {self._names[row[0]]: _action(row) for row in rows}
            self._refused = {self._names[row[0]]: _action(row) for row in refused}
            self._count(actions, norms)
            if self._log is not None:
                self._log.observed(self._native.step, self._keys, values, actions, self._refused)
        return actions

    def level(self, unit: str) -> int:
        """How far up its list of wire formats the unit's values of the next step travel: 0 to levels - 1.

        Raises
        ------
        gcomm.errors.InvalidArgumentError
            The unit is not known.
        """
        with self._lock:
            return self._native.level(self._id(unit, "level"))

    def _level_now(self, unit: str) -> int:
        """The level at which a unit travels that :meth:`_observe_next` will be called with."""
        with self._lock:
            seen = unit in self._ids and self._native.get(self._ids[unit])[5] == self._native.step
            step = self._native.step + seen
        return self._level_at(unit, step)

    def _level_at(self, unit: str, step: int) -> int:
        """The level at which a unit travels at a step that it was not yet seen at."""
        with self._lock:
            id_ = self._ids.get(unit)
            if id_ is None:
                return 0
            values = self._values(id_)
        return int(values["level"]) if values["until"] >= max(step, 0) else 0

    def _observe_next(self, norms: Mapping[str, float]) -> dict[str, Action]:
        """Observes some of a step's units: at the last step, or at the next if one of them was seen at it."""
        with self._lock:
            step = self._native.step
            seen = any(unit in self._ids and self._native.get(self._ids[unit])[5] == step for unit in norms)
            return self.observe(norms, max(step, 0) + (1 if seen and step >= 0 else 0))

    def unit(self, unit: str) -> dict[str, Any]:
        """What is remembered of a unit: mean, rho, delta, count (norms in the mean), until, seen (the last step
        under recovery and the last observed; -1: none), level and reason (of the last recovery), next, recent
        (the last values of rho, and where the next one goes).

        Raises
        ------
        gcomm.errors.InvalidArgumentError
            The unit is not known.
        """
        with self._lock:
            return self._values(self._id(unit, "unit"))

    def add(self, unit: str) -> None:
        """Makes a unit known. :meth:`observe` does so by itself.

        Raises
        ------
        gcomm.errors.InvalidArgumentError
            It is known already.
        """
        with self._lock:
            self._add(unit, Where("add", "unit", None))
            if self._log is not None:
                self._log.changed("add", unit)

    def remove(self, unit: str) -> None:
        """Forgets a unit and its history; a recovery of it ends.

        Raises
        ------
        gcomm.errors.InvalidArgumentError
            The unit is not known.
        """
        with self._lock:
            self._id(unit, "remove")
            self._forget([unit])
            self._counts.pop(unit, None)
            if self._log is not None:
                self._log.changed("remove", unit)

    def report(self) -> dict[str, Any]:
        """What was done so far, as plain numbers.

        step, units, unit_steps (norms observed), clips, skips, recoveries (begun), refusals, recovering (units
        by name: level, until and reason), and by_unit: the four counts of each unit that has any.
        """
        with self._lock:
            step = self._native.step
            recovering = {}
            for unit, id_ in self._ids.items():
                values = self._values(id_)
                if values["until"] >= max(step, 0):
                    recovering[unit] = {name: values[name] for name in ("level", "until", "reason")}
            return {
                "step": step,
                "units": len(self._ids),
                "unit_steps": self._unit_steps,
                **{name: sum(counts[name] for counts in self._counts.values()) for name in _COUNTED},
                "recovering": recovering,
                "by_unit": {unit: dict(counts) for unit, counts in self._counts.items()},
            }

    def state_dict(self) -> dict[str, Any]:
        """All that later decisions depend on, and the counts: plain JSON (Inf as a text)."""
        with self._lock:
            units = {}
            for unit, id_ in self._ids.items():
                values = self._values(id_)
                units[unit] = {**values, "rho": finite(values["rho"]), "delta": finite(values["delta"])}
            return {
                "version": _STATE_VERSION,
                "config": {name: finite(value) for name, value in self._config.items()},
                "step": self._native.step,
                "unit_steps": self._unit_steps,
                "counts": {unit: dict(counts) for unit, counts in self._counts.items()},
                "units": units,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where :meth:`state_dict` was called. Thresholds, budget and lock stay those of this object.

        Raises
        ------
        gcomm.errors.InvalidArgumentError
            It is of another version, window or number of levels, or not such a state. Nothing has changed then.
        """
        where = Where("load_state_dict", "state", None)
        if not isinstance(state, Mapping):
            where.mistyped(f"expected the dict that state_dict() gives, got {type(state).__name__}")
        if state.get("version") != _STATE_VERSION:
            where.invalid(f"expected version {_STATE_VERSION}, got {state.get('version')!r}")
        try:
            other = {name: state["config"][name] for name in ("window", "levels")}
        except (KeyError, TypeError) as error:
            where.invalid(f"expected what state_dict() gives, which has: {error}")
        for name, value in other.items():
            if value != self._config[name]:
                where.invalid(f"expected {name} {self._config[name]}, as this controller has, got {value!r}")
        try:
            native = _native.Gnmr(**self._config)
            native.set_step(state["step"])
            ids = {unit: self._restore(native, unit, values) for unit, values in state["units"].items()}
            counts = {
                str(unit): {name: int(values[name]) for name in _COUNTED}
                for unit, values in state["counts"].items()
            }
            unit_steps = int(state["unit_steps"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            where.invalid(f"expected what state_dict() gives: {error}")
        with self._lock:
            self._native = native
            self._ids = ids
            self._names = {id_: unit for unit, id_ in ids.items()}
            self._keys = ()
            self._numbers = np.empty(0, np.uint32)
            self._refused = {}
            self._counts = counts
            self._unit_steps = unit_steps
        if self._log is not None:
            self._log.loaded(self.state_dict())

    def _values(self, id_: int) -> dict[str, Any]:
        mean, rho, delta, count, until, seen, level, reason, following, recent = self._native.get(id_)
        return {
            "mean": mean,
            "rho": rho,
            "delta": delta,
            "count": count,
            "until": until,
            "seen": seen,
            "level": level,
            "reason": _REASONS[reason],
            "next": following,
            "recent": recent,
        }

    def _restore(self, native: _native.Gnmr, unit: str, values: Mapping[str, Any]) -> int:
        id_ = native.add(unit)
        tau = self._config["tau"]
        native.set(
            id_,
            (
                float(values["mean"]),
                number(values["rho"]),
                number(values["delta"]),
                values["count"],
                values["until"],
                values["seen"],
                values["level"],
                _REASONS.index(values["reason"]),
                values["next"],
                [min(float(value), tau) for value in values["recent"]],
            ),
        )
        return id_

    def _id(self, unit: str, verb: str) -> int:
        found = self._ids.get(unit)
        if found is None:
            Where(verb, "unit", None).invalid(f"none is named {unit!r}")
        return found

    def _add(self, unit: Any, where: Where) -> None:
        if not isinstance(unit, str):
            where.mistyped(f"expected units named by str, got {type(unit).__name__}")
        id_ = self._native.add(unit)
        self._ids[unit] = id_
        self._names[id_] = unit

    def _forget(self, units: list[str]) -> None:
        # The last first: what is added next gets the numbers that these would have got.
        for unit in reversed(units):
            id_ = self._ids.pop(unit)
            self._native.remove(id_)
            del self._names[id_]
        if units:
            self._keys = ()
            self._numbers = np.empty(0, np.uint32)

    def _look_up(self, keys: tuple[str, ...], where: Where) -> list[str]:
        """Numbers for the keys; returns those that are new."""
        if keys == self._keys:
            return []
        added: list[str] = []
        try:
            for unit in keys:
                if unit not in self._ids:
                    self._add(unit, where)
                    added.append(unit)
        except Exception:
            self._forget(added)
            raise
        self._keys = keys
        self._numbers = np.array([self._ids[unit] for unit in keys], np.uint32)
        return added

    def _count(self, actions: Mapping[str, Action], observed: Mapping[str, float]) -> None:
        lasts = self._native.step + self._config["lock"]
        for unit, action in actions.items():
            if action.kind == "clip":
                self._count_one(unit, "clips")
            elif action.kind == "skip":
                self._count_one(unit, "skips")
            # One that began in an earlier call of this step was counted then.
            if action.until == lasts and unit in observed:
                self._count_one(unit, "recoveries")
        for unit in self._refused:
            self._count_one(unit, "refusals")

    def _count_one(self, unit: str, name: str) -> None:
        self._counts.setdefault(unit, dict.fromkeys(_COUNTED, 0))[name] += 1


def _action(row: _Row) -> Action:
    _, kind, level, reason, scale, until, rho, delta = row
    return Action(_KINDS[kind], level, scale, until, _REASONS[reason], rho, delta)


def _threshold(value: Any, name: str) -> float:
    where = Where("Controller", name, None)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        where.mistyped(f"expected a number, got {type(value).__name__}")
    if math.isnan(value) or value < 1:
        where.invalid(f"expected a number of 1 or more, got {value!r}")
    return float(value)
