"""The log of a controller, decided again: with its own arguments, with others, and with some that fit it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._gnmr_controller import Controller
from ._gnmr_log import VERSION, described, lines, number
from .errors import GcommError, InvalidArgumentError

__all__ = ["Calibration", "Replay", "calibrate", "replay"]

_Events = list[tuple[int, str, Any]]  # line, what, with what
_WINDOWS = (8, 16, 32, 64)
_ATTEMPTS = 60


@dataclasses.dataclass
class Replay:
    """What a replay decided.

    Attributes
    ----------
    config : dict
        The controller's arguments in it, of the log's last run.
    same : bool
        Every decision is the logged one, bit for bit. Always so unless an argument was changed.
    differs : list of str
        Where not, at most ten of them in words.
    norms : list of (step, {unit: norm})
    actions, logged : list of (step, {unit: {kind, level, scale, until, reason, rho, delta}})
        Decided now, and in the log.
    reports : list of dict
        :meth:`gcomm.gnmr.Controller.report` at the end of each run in the log.
    """

    config: dict[str, Any]
    same: bool = True
    differs: list[str] = dataclasses.field(default_factory=list)
    norms: list[tuple[int, dict[str, float]]] = dataclasses.field(default_factory=list)
    actions: list[tuple[int, dict[str, Any]]] = dataclasses.field(default_factory=list)
    logged: list[tuple[int, dict[str, Any]]] = dataclasses.field(default_factory=list)
    reports: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def totals(self) -> dict[str, int]:
        """Sums over the runs: unit_steps, clips, skips, recoveries, refusals; and the most units clipped or
        under recovery at one step (busiest).
        """
        names = ("unit_steps", "clips", "skips", "recoveries", "refusals")
        totals = {name: sum(report[name] for report in self.reports) for name in names}
        totals["busiest"] = max((busy(step, acts) for step, acts in self.actions), default=0)
        return totals


def busy(step: int, actions: Mapping[str, Any]) -> int:
    """Units clipped or under recovery: all but those that are only skipped."""
    return sum(a["kind"] != "skip" or a["until"] > step for a in actions.values())


def replay(path: str | os.PathLike[str], **changed: Any) -> Replay:
    """Decides a log again.

    Parameters
    ----------
    path : path
        What a controller with ``log=`` wrote.
    changed
        Arguments of :class:`Controller` to take instead of the log's.

    Raises
    ------
    gcomm.errors.InvalidArgumentError
        It is no such log, or of another version.
    TypeError
        There is no argument of a name in ``changed``.
    """
    runs = _runs(path)
    unknown = sorted(set(changed) - set(runs[0][0]))
    if unknown:
        raise TypeError(f"replay: a Controller has no argument {', '.join(unknown)}")
    with _of_a_log(path):
        return _decide(runs, changed)


@contextlib.contextmanager
def _of_a_log(path: str | os.PathLike[str]) -> Iterator[None]:
    """What goes wrong inside is the log's fault."""
    try:
        yield
    except GcommError:
        raise  # it says what is wrong with which argument
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{path}: not a log of a gcomm.gnmr.Controller: {type(error).__name__}: {error}"
        ) from None


def _decide(runs: list[tuple[dict[str, Any], _Events]], changed: Mapping[str, Any]) -> Replay:
    result: Replay | None = None
    for config, events in runs:
        arguments = {**config, **changed}
        controller = Controller(**arguments)
        if result is None:
            result = Replay(controller.config)
        result.config = controller.config
        for place, what, value in events:
            if what == "state":
                controller.load_state_dict(_adapted(value, controller.config))
            elif what == "observed":
                _observe(controller, place, value, result)
            else:
                getattr(controller, what)(value)
        result.reports.append(controller.report())
    assert result is not None
    return result


def _observe(controller: Controller, place: int, value: dict[str, Any], result: Replay) -> None:
    step = value["step"]
    actions = described(controller.observe(value["norms"], step))
    refused = described(controller.refused)
    result.norms.append((step, value["norms"]))
    result.actions.append((step, actions))
    result.logged.append((step, value["actions"]))
    for name, now, then in (("actions", actions, value["actions"]), ("refused", refused, value["refused"])):
        if now != then or list(now) != list(then):
            result.same = False
            if len(result.differs) < 10:
                units = [unit for unit in {**now, **then} if now.get(unit) != then.get(unit)]
                result.differs.append(
                    f"line {place}, step {step}, {name}: {', '.join(units) or 'another order'}"
                )


def _adapted(state: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A logged state for a controller of other arguments: of a shorter window the newest values."""
    units = {}
    for unit, values in state["units"].items():
        recent, following = values["recent"], values["next"]
        if state["config"]["window"] != config["window"]:
            full = len(recent) == state["config"]["window"]
            recent = (recent[following:] + recent[:following] if full else recent)[-config["window"] :]
            following = len(recent) % config["window"]
        level = min(values["level"], config["levels"] - 1)
        units[unit] = {**values, "recent": recent, "next": following, "level": level}
    return {**state, "config": config, "units": units}


def _runs(path: str | os.PathLike[str]) -> list[tuple[dict[str, Any], _Events]]:
    runs: list[tuple[dict[str, Any], _Events]] = []
    units: list[str] = []
    with _of_a_log(path):
        for place, line in lines(path):
            if "gnmr" in line:
                if line["gnmr"] != VERSION:
                    raise ValueError(f"line {place}: expected a log of version {VERSION}, got {line['gnmr']!r}")
                config = {name: number(v) if isinstance(v, str) else v for name, v in line["config"].items()}
                runs.append((config, []))
                units = []
                continue
            if not runs:
                raise ValueError(f"line {place}: expected a run's first line, with 'gnmr' and 'config'")
            events = runs[-1][1]
            if "norms" in line:
                if not isinstance(line["step"], int):
                    raise TypeError(f"line {place}: its step is {line['step']!r}")
                norms = dict(zip(units, map(number, line["norms"]), strict=True))
                events.append((place, "observed", {**line, "norms": norms}))
            elif "units" in line:
                units = line["units"]
                if not isinstance(units, list):
                    raise TypeError(f"line {place}: its units are {units!r}")
            else:
                ((what, value),) = line.items()
                if what not in ("add", "remove", "state"):
                    raise ValueError(f"line {place}: it holds {what!r}, which is unknown")
                events.append((place, what, value))
    if not runs:
        raise InvalidArgumentError(f"{path}: not a log of a gcomm.gnmr.Controller: it is empty")
    return runs


@dataclasses.dataclass
class Calibration:
    """Arguments for a controller, from a healthy run.

    Attributes
    ----------
    config : dict
        tau, tau_delta, window and max_ops as proposed; warmup, lock and levels as they were.
    rate : float
        False alarms a unit-step that a controller with them raises on the same log, refused ones included.
    alarms, unit_steps : int
    """

    config: dict[str, Any]
    rate: float
    alarms: int
    unit_steps: int


def calibrate(path: str | os.PathLike[str], false_alarm_rate: float) -> Calibration:
    """Proposes thresholds that a healthy run crosses at most this often.

    For windows of 8, 16, 32 and 64 both thresholds are put so that each alone takes half of the rate; they are
    raised until a replay of the log is within it. The window with the smallest tau is proposed: it notices the
    least. max_ops: twice the units that were ever busy at once in that replay, or a twentieth of all units if
    that is more.

    Parameters
    ----------
    path : path
        The log of a run in which nothing went wrong, at any thresholds.
    false_alarm_rate : float
        Alarms a unit-step, more than 0 and less than 1.

    Raises
    ------
    gcomm.errors.InvalidArgumentError
        It is no such log, the rate is out of its range, or the log has no unit-step after the warm-up.
    """
    if not 0 < false_alarm_rate < 1:
        raise InvalidArgumentError(
            f"false_alarm_rate: expected more than 0 and less than 1, got {false_alarm_rate}"
        )
    runs = _runs(path)
    best: Calibration | None = None
    for window in _WINDOWS:
        with _of_a_log(path):
            found = _fit(runs, window, false_alarm_rate)
        if best is None or found.config["tau"] < best.config["tau"]:
            best = found
    assert best is not None
    return best


def _fit(runs: list[tuple[dict[str, Any], _Events]], window: int, rate: float) -> Calibration:
    rho, delta = _measures(runs, window)
    if len(rho) == 0:
        raise InvalidArgumentError("the log holds no unit-step after the warm-up")
    budget = 2**30
    changed: dict[str, Any] = {
        "tau": _above(rho, rate / 2),
        "tau_delta": _above(delta, rate / 2),
        "window": window,
        "max_ops": budget,
    }
    for _ in range(_ATTEMPTS):
        result = _decide(runs, changed)
        alarms = result.totals()["recoveries"]
        unit_steps = result.totals()["unit_steps"]
        if alarms <= rate * unit_steps:
            break
        changed["tau"] *= 1.1
        changed["tau_delta"] *= 1.1
    else:
        raise InvalidArgumentError(
            f"no thresholds reach {rate:g} alarms a unit-step on this log: {alarms} of {unit_steps} remain at "
            f"tau {changed['tau']:.3g}; norms that are not finite alarm at any, so this was no healthy run"
        )
    units = max(report["units"] for report in result.reports)
    changed["max_ops"] = max(1, 2 * result.totals()["busiest"], math.ceil(units / 20))
    return Calibration({**result.config, **changed}, alarms / unit_steps, alarms, unit_steps)


def _above(values: NDArray[np.float64], share: float) -> float:
    """The threshold of at least 1, with three digits, that at most this share of the values is above."""
    value = max(1.0, float(np.quantile(values, 1 - share, method="higher")))
    digits = 10.0 ** (2 - math.floor(math.log10(value)))
    return math.ceil(value * digits) / digits


def _measures(
    runs: list[tuple[dict[str, Any], _Events]], window: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rho and delta of every unit-step after the warm-up, with nothing clipped."""
    rho: list[float] = []
    delta: list[float] = []
    off = {"tau": math.inf, "tau_delta": math.inf, "window": window}
    for config, events in runs:
        controller = Controller(**{**config, **off})
        for _, what, value in events:
            if what == "state":
                controller.load_state_dict(_adapted(value, controller.config))
            elif what == "observed":
                controller.observe(value["norms"], value["step"])
                for each_rho, each_delta in _observed(controller, value["norms"]):
                    rho.append(each_rho)
                    delta.append(each_delta)
            else:
                getattr(controller, what)(value)
    return np.array(rho), np.array(delta)


def _observed(controller: Controller, norms: Mapping[str, float]) -> Iterator[tuple[float, float]]:
    warm = max(controller.config["warmup"], 1)
    for unit, norm in norms.items():
        if math.isfinite(norm):
            seen = controller.unit(unit)
            if seen["count"] > warm:
                yield seen["rho"], seen["delta"]
