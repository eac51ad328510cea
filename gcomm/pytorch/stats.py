"""What was sent for each parameter, what it cost, and how exact it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Statistics", "log_to", "summary"]

Callback = Callable[[int, Mapping[str, float]], object]

_TIMES = ("encode_s", "comm_s", "decode_s")
_SUMS = ("raw_bytes", "wire_bytes", *_TIMES)


@dataclass
class _Sums:
    """Running sums of the tensors that travel in one call."""

    names: Sequence[str]
    codec: str
    calls: int = 0
    table: Any = None  # float64, one row each of _SUMS, one column a tensor
    raw_calls: Any = None

    def __post_init__(self) -> None:
        self.table = np.zeros((len(_SUMS), len(self.names)))
        self.raw_calls = np.zeros(len(self.names), np.int64)

    def add(self, stats: Mapping[str, Any], tensors: Sequence[tuple[int, int, bool]]) -> None:
        bytes_ = np.array(tensors, np.float64).T
        sent = bytes_[1].sum()
        share = bytes_[1] / sent if sent else np.full(len(self.names), 1 / len(self.names))
        self.calls += 1
        self.table[:2] += bytes_[:2]
        for row, name in enumerate(_TIMES, 2):
            self.table[row] += stats[name] * share
        self.raw_calls += bytes_[2].astype(np.int64)


@dataclass
class Statistics:
    """Sums over all steps so far, by parameter and in all. Fed by the hooks; safe to read at any time."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sums: list[_Sums] = field(default_factory=list)
    _total: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    _errors: dict[str, float] = field(default_factory=dict)
    _error: float | None = None
    _step: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    _step_errors: list[tuple[str, float, float]] = field(default_factory=list)
    _steps: int = 0
    _callbacks: list[tuple[Callback, int, bool]] = field(default_factory=list)

    def group(self, names: Sequence[str], codec: str) -> _Sums:
        """Sums for tensors that travel together from now on."""
        sums = _Sums(names, codec)
        with self._lock:
            self._sums.append(sums)
        return sums

    def add(self, sums: _Sums, stats: Mapping[str, Any], tensors: Sequence[tuple[int, int, bool]]) -> None:
        """One call: its own figures, and (raw bytes, wire bytes, whether raw) of each of its tensors."""
        with self._lock:
            sums.add(stats, tensors)
            for name in _SUMS:
                self._total[name] += stats[name]
                self._step[name] += stats[name]

    def add_other(self, stats: Mapping[str, Any]) -> None:
        """A call that belongs to no parameter: it counts in all."""
        with self._lock:
            for name in _SUMS:
                self._total[name] += stats[name]
                self._step[name] += stats[name]

    def add_parameters(self, sums: _Sums, tensors: Sequence[tuple[int, int, bool]]) -> None:
        """What was sent of each tensor in a call that is counted by :meth:`add_other`."""
        with self._lock:
            sums.add(dict.fromkeys(_TIMES, 0.0), tensors)

    def add_errors(self, errors: Sequence[tuple[str, float, float]]) -> None:
        """(name, squared error, squared norm) of parameters, as measured in this step."""
        with self._lock:
            self._step_errors += errors

    def add_callback(self, callback: Callback, every: int, parameters: bool) -> None:
        with self._lock:
            self._callbacks.append((callback, every, parameters))

    def end_step(self, step: int) -> None:
        """The step is over: what callbacks are due get its figures."""
        with self._lock:
            values: dict[str, float] = {**self._step, "ratio": _ratio(self._step)}
            self._step = dict.fromkeys(_SUMS, 0.0)
            self._steps += 1
            errors = {name: _relative(e, n) for name, e, n in self._step_errors}
            if self._step_errors:
                self._errors.update(errors)
                self._error = values["error"] = _relative(
                    sum(e for _, e, _ in self._step_errors), sum(n for *_, n in self._step_errors)
                )
                self._step_errors = []
            callbacks = list(self._callbacks)
        for callback, every, parameters in callbacks:
            if step % every == 0:
                each = {f"error/{name}": error for name, error in errors.items()} if parameters else {}
                callback(step, {**values, **each})

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers; see :attr:`gcomm.pytorch.DDPState.stats`."""
        with self._lock:
            rows: dict[str, dict[str, Any]] = {}
            for sums in self._sums:
                for i, name in enumerate(sums.names):
                    row = rows.setdefault(
                        name, {"codec": "", "calls": 0, "raw_path_calls": 0, **dict.fromkeys(_SUMS, 0.0)}
                    )
                    if sums.calls:
                        row["codec"] = sums.codec
                    row["calls"] += sums.calls
                    row["raw_path_calls"] += int(sums.raw_calls[i])
                    for key, value in zip(_SUMS, sums.table[:, i], strict=True):
                        row[key] += float(value)
            for name, row in rows.items():
                _round_bytes(row)
                row["ratio"] = _ratio(row)
                row["error"] = self._errors.get(name)
            total: dict[str, Any] = {"steps": self._steps, **self._total}
            _round_bytes(total)
            return {**total, "ratio": _ratio(self._total), "error": self._error, "parameters": rows}


def _round_bytes(row: dict[str, Any]) -> None:
    for name in ("raw_bytes", "wire_bytes"):
        row[name] = int(row[name])


def _ratio(row: Mapping[str, float]) -> float:
    return row["raw_bytes"] / row["wire_bytes"] if row["wire_bytes"] else 1.0


def _relative(error: float, norm: float) -> float:
    return float((error / norm) ** 0.5) if norm else 0.0


def log_to(writer: Any, prefix: str = "gcomm") -> Callback:
    """A callback that hands each figure to a TensorBoard writer.

    Parameters
    ----------
    writer : torch.utils.tensorboard.SummaryWriter
        Or anything with ``add_scalar(tag, value, step)``.
    prefix : str
        Tags are ``prefix/figure``.
    """

    def callback(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(f"{prefix}/{name}", value, step)

    return callback


_COLUMNS = ("parameter", "codec", "calls", "raw", "sent", "ratio", "error", "encode", "comm", "decode")


def summary(state: Any, *, by: str = "wire_bytes", limit: int | None = None) -> str:
    """What a state has sent so far, as a table.

    Parameters
    ----------
    state : DDPState
        Or anything whose ``stats`` are of that form, or such stats themselves.
    by : str
        Figure to sort by, largest first; "name" for names.
    limit : int, optional
        So many parameters at most.

    Returns
    -------
    str
        One line a parameter (bytes sent, codec, raw bytes over sent ones, relative error of the average as last
        measured, milliseconds) and one for all, whose bytes include headers.
    """
    stats = state if isinstance(state, Mapping) else state.stats
    rows = list(stats["parameters"].items())
    rows.sort(key=lambda item: item[0] if by == "name" else -(item[1][by] or 0))
    left = len(rows) - len(rows[:limit])
    lines = [_COLUMNS, *(_cells(name, row) for name, row in rows[:limit])]
    if left:
        lines.append((f"({left} more)", *[""] * (len(_COLUMNS) - 1)))
    lines.append(_cells("all", {**stats, "codec": "", "calls": stats["steps"], "raw_path_calls": 0}))
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    all_raw = row["calls"] and row["raw_path_calls"] == row["calls"]
    return (
        name,
        "as it is (small)" if all_raw else row["codec"],
        str(row["calls"]),
        _size(row["raw_bytes"]),
        _size(row["wire_bytes"]),
        f"{row['ratio']:.2f}",
        "-" if row["error"] is None else f"{row['error']:.4f}",
        *(f"{1e3 * row[name]:.1f} ms" for name in _TIMES),
    )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
