"""The log of a stability controller: JSON lines from which its decisions can be made again, bit for bit.

The first line of a run is ``{"gnmr": 1, "config": {...}}``. Then, in order: ``{"units": [...]}`` when the units
that are observed change, ``{"step", "norms", "actions", "refused"}`` for each observation, ``{"add": unit}``,
``{"remove": unit}`` and ``{"state": {...}}``. Numbers that are not finite are texts: "inf", "nan".
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from ._gnmr_controller import Action

__all__ = ["VERSION", "Log", "described", "finite", "lines", "number"]

VERSION = 1


def finite(value: float) -> float | str:
    """A number as plain JSON has it; "inf" or "nan" where it has none."""
    return value if math.isfinite(value) else str(value)


def number(value: float | str) -> float:
    """What :func:`finite` made of a number."""
    return float(value)


class Log:
    """Appends to a file. Each line is written out at once: a run that ends early leaves its log."""

    def __init__(self, path: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
        # Open as long as the controller lives.
        self._file = Path(path).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._units: tuple[str, ...] | None = None
        self._write({"gnmr": VERSION, "config": {name: finite(value) for name, value in config.items()}})

    def observed(
        self,
        step: int,
        units: tuple[str, ...],
        norms: NDArray[Any],
        actions: Mapping[str, Action],
        refused: Mapping[str, Action],
    ) -> None:
        if units != self._units:
            self._write({"units": list(units)})
            self._units = units
        self._write(
            {
                "step": step,
                "norms": [finite(norm) for norm in norms.tolist()],
                "actions": described(actions),
                "refused": described(refused),
            }
        )

    def changed(self, what: str, unit: str) -> None:
        self._write({what: unit})

    def loaded(self, state: Mapping[str, Any]) -> None:
        self._write({"state": state})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")


def described(actions: Mapping[str, Action]) -> dict[str, dict[str, Any]]:
    """Actions as plain JSON."""
    return {
        unit: {name: finite(v) if isinstance(v, float) else v for name, v in dataclasses.asdict(action).items()}
        for unit, action in actions.items()
    }


def lines(path: str | os.PathLike[str]) -> Sequence[tuple[int, dict[str, Any]]]:
    """The log's lines with their numbers. A last line that was cut short by the end of the run is left out."""
    found = []
    texts = Path(path).read_text(encoding="utf-8").split("\n")
    for place, text in enumerate(texts, 1):
        if not text:
            continue
        try:
            line = json.loads(text)
            if not isinstance(line, dict):
                raise ValueError("not an object")
        except ValueError as error:
            if place == len(texts):
                break
            raise ValueError(f"{path}: line {place}: expected a JSON object: {error}") from None
        found.append((place, line))
    return found
