"""Finds a machine's costs in rows of ``gcomm bench``, and how well they predict rows that were held out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gcomm
from gcomm.planner.model import ITEM_BYTES, TILE, Codec, Costs, Layout, predict

Row = dict[str, Any]
Vector = npt.NDArray[np.float64]

EXACT = "none"
LEAST_SIZES = 5
# Where the search begins: a core of some years ago, and a link as fast as the rows show (_start). Only what the
# rows leave open stays near it.
START = Costs(
    call_s=10e-6,
    latency_s=15e-6,
    message_s=4e-6,
    copy_s=0.3e-9,
    wire_s=1e-9,
    memory_factor=0.7,
    memory_bytes=2.0**22,
)
START_PASS_S = 0.6e-9
# Of a parameter's deviation from START by a factor of e, in standard deviations of a row (which is e, too).
_HOLD = 0.02
_ROUNDS = 60
# Deviations beyond it count in proportion, not squared: one disturbed row must not bend the rest.
_SOFT = 0.2


class FitError(ValueError):
    """The rows can't be used, or not for what is asked; the text says why."""


@dataclass(frozen=True)
class Measurements:
    """Rows of ``gcomm bench all_reduce`` (float32) and of ``gcomm bench codec``.

    Attributes
    ----------
    rows:
        all_reduce without baselines.
    baselines:
        all_reduce of other libraries.
    passes:
        (encode, decode) seconds an element of codecs that were measured alone.
    """

    rows: tuple[Row, ...]
    baselines: tuple[Row, ...]
    passes: dict[str, tuple[float, float]]

    @property
    def codecs(self) -> list[str]:
        """Codecs with all_reduce rows, in their order."""
        return list(dict.fromkeys(row["codec"] for row in self.rows))

    @property
    def world_sizes(self) -> list[int]:
        """Numbers of ranks that were measured."""
        return sorted({int(row["world_size"]) for row in self.rows})


def read_rows(paths: Iterable[str | Path]) -> Measurements:
    """The rows of JSON files that ``gcomm bench`` has written.

    Raises
    ------
    FitError
        A file has no rows, or others than of all_reduce and codec, or of several transports or dtypes.
    """
    return sort_rows(row for path in paths for row in load(path))


def load(path: str | Path) -> list[Row]:
    """The rows of one file; raises as :func:`read_rows` does."""
    try:
        loaded = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FitError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise FitError(f"{path} is not JSON: {error}") from error
    if not isinstance(loaded, list) or not all(isinstance(row, dict) for row in loaded):
        raise FitError(f"{path}: expected an array of rows, as gcomm bench --json writes it")
    if not loaded:
        raise FitError(f"{path} has no rows")
    return loaded


def sort_rows(rows: Iterable[Row]) -> Measurements:
    """Rows by kind; raises as :func:`read_rows` does."""
    ours: list[Row] = []
    baselines: list[Row] = []
    passes: dict[str, tuple[float, float]] = {}
    for row in rows:
        _require_numbers(row)
        if "encode_gbps" in row and "decode_accumulate_gbps" in row:
            encode, decode = (
                ITEM_BYTES / (row[part] * 1e9) for part in ("encode_gbps", "decode_accumulate_gbps")
            )
            passes[row["codec"]] = encode, decode
        elif row.get("collective") == "all_reduce" and {"codec", "world_size", "bytes", "time_us"} <= set(row):
            (baselines if row["codec"].startswith("baseline:") else ours).append(row)
        elif row.get("collective"):
            continue  # another collective of a suite
        else:
            raise FitError(f"a row is neither of gcomm bench all_reduce nor of gcomm bench codec: {row}")
    for what in ("transport", "dtype"):
        found = sorted({str(row.get(what)) for row in ours})
        if len(found) > 1:
            raise FitError(f"rows of several {what}s in one measurement: {', '.join(found)}")
    if ours and ours[0].get("dtype") not in (None, "float", "float32"):
        raise FitError(f"the planner knows float32 rows, not {ours[0]['dtype']}")
    return Measurements(tuple(ours), tuple(baselines), passes)


# What a row says that is counted with, and the least that it can be; more than nothing where that is None.
_NUMBERS = {
    "world_size": 1,
    "bytes": 0,
    "time_us": None,
    "encode_gbps": None,
    "decode_accumulate_gbps": None,
    "rel_err": 0,
}


def _require_numbers(row: Row) -> None:
    codec = row.get("codec", EXACT)
    if not isinstance(codec, str):
        raise FitError(f"a row's codec is {codec!r}, expected a text: {row}")
    if codec != EXACT and not codec.startswith("baseline:"):
        try:
            gcomm.codec(codec)
        except gcomm.errors.CodecError as error:
            raise FitError(f"a row's codec {codec!r} is unknown here: {error}") from error
    for name, least in _NUMBERS.items():
        if name not in row:
            continue
        value = row[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value)
        if not number or (value <= 0 if least is None else value < least):
            bound = "more than 0" if least is None else f"{least} or more"
            raise FitError(f"a row's {name} is {value!r}, expected a number of {bound}: {row}")


@dataclass(frozen=True)
class Baseline:
    """Another library's all_reduce as a ring: ``2 (N - 1)`` rounds, each with an N-th of the bytes."""

    name: str
    round_s: float
    byte_s: float

    def time_s(self, nbytes: int, layout: Layout, wire_s: float) -> float:
        """Of one call; ``wire_s`` as in :class:`Costs`."""
        n = layout.ranks
        rounds = 2 * (n - 1)
        return layout.stretch * rounds * self.round_s + rounds / n * nbytes * max(
            self.byte_s * layout.stretch, wire_s
        )


@dataclass(frozen=True)
class Fit:
    """What was found.

    Attributes
    ----------
    costs, codecs:
        For :func:`gcomm.planner.predict`.
    baselines:
        By name.
    held_out:
        Relative errors (predicted / measured - 1) of the rows that the costs behind them had not seen.
    """

    costs: Costs
    codecs: dict[str, Codec]
    baselines: dict[str, Baseline]
    held_out: Vector

    @property
    def median_error(self) -> float:
        """Of the held-out rows, absolute."""
        return float(np.median(np.abs(self.held_out)))

    @property
    def p90_error(self) -> float:
        """The 90th percentile of the held-out rows' absolute errors."""
        return float(np.quantile(np.abs(self.held_out), 0.9))


def fit(found: Measurements, layout_of: Callable[[int], Layout]) -> Fit:
    """Costs from all rows, and their error from a first fit that is shown only every other size.

    Parameters
    ----------
    found : Measurements
        With at least five sizes for each codec and number of ranks.
    layout_of : callable
        The layout in which a number of ranks was measured.

    Raises
    ------
    FitError
        Too few sizes.
    """
    seen, unseen = _split(found.rows)
    first = _search(seen, found, layout_of)
    errors = np.array([_time(row, *first, layout_of) / (row["time_us"] * 1e-6) - 1 for row in unseen])
    costs, codecs = _search(found.rows, found, layout_of)
    return Fit(costs, _with_unmeasured(codecs, found), _baselines(found, layout_of), errors)


def errors_at(held: Fit, rows: Sequence[Row], layout_of: Callable[[int], Layout]) -> Vector:
    """Relative errors of a fit at other rows, for instance of another number of ranks."""
    return np.array(
        [_time(row, held.costs, held.codecs, layout_of) / (row["time_us"] * 1e-6) - 1 for row in rows]
    )


def wire_bytes_per_element(name: str) -> float:
    """Of a codec in the limit of many elements."""
    return float(ITEM_BYTES) if name == EXACT else gcomm.codec(name).wire_bytes(64 * TILE) / (64 * TILE)


def _split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Every other size but the first and the last is held out."""
    seen: list[Row] = []
    unseen: list[Row] = []
    for key in dict.fromkeys((row["codec"], row["world_size"]) for row in rows):
        group = [row for row in rows if (row["codec"], row["world_size"]) == key]
        sizes = sorted({row["bytes"] for row in group})
        if len(sizes) < LEAST_SIZES:
            raise FitError(
                f"{key[0]} at {key[1]} ranks has {len(sizes)} sizes, and a fit that holds some out needs "
                f"at least {LEAST_SIZES} (gcomm bench all_reduce -b 1K -e 64M -f 4, say)"
            )
        out = set(sizes[1:-1:2])
        for row in group:
            (unseen if row["bytes"] in out else seen).append(row)
    if not rows:
        raise FitError("no rows of gcomm bench all_reduce")
    return seen, unseen


# ---- the search ----------------------------------------------------------------------------------------------

_COSTS = ("call_s", "latency_s", "message_s", "copy_s", "wire_s", "memory_factor", "memory_bytes")


def _build(found: Measurements) -> tuple[list[str], Callable[[Vector], tuple[Costs, dict[str, Codec]]]]:
    names = found.codecs
    start = _start(found.rows)

    def build(logs: Vector) -> tuple[Costs, dict[str, Codec]]:
        values = np.exp(logs)
        costs = Costs(
            **{name: getattr(start, name) * float(v) for name, v in zip(_COSTS, values, strict=False)}
        )
        codecs = {}
        for name, factor in zip(names, values[len(_COSTS) :], strict=True):
            encode, decode = found.passes.get(name, (START_PASS_S, START_PASS_S))
            codecs[name] = Codec(
                name, wire_bytes_per_element(name), encode * float(factor), decode * float(factor)
            )
        return costs, codecs

    return names, build


def _start(rows: Sequence[Row]) -> Costs:
    """With a link that would carry the bytes of the fastest row in its time: none is slower."""
    paces = [
        row["time_us"]
        * 1e-6
        / (2 * (n - 1) / n * row["bytes"] / ITEM_BYTES * wire_bytes_per_element(row["codec"]))
        for row, n in ((row, row["world_size"]) for row in rows)
        if n > 1 and row["bytes"] > 0
    ]
    return replace(START, wire_s=min(paces, default=START.wire_s))


def _soften(errors: Vector) -> Vector:
    """Its square is that of a small error, and grows in proportion to a large one."""
    scaled: Vector = np.sqrt(2 * (np.hypot(1, errors / _SOFT) - 1))
    return _SOFT * np.sign(errors) * scaled


def _time(row: Row, costs: Costs, codecs: dict[str, Codec], layout_of: Callable[[int], Layout]) -> float:
    count = int(row["bytes"]) // ITEM_BYTES
    return predict(codecs[row["codec"]], count, costs, layout_of(int(row["world_size"]))).time_s


def _search(
    rows: Sequence[Row], found: Measurements, layout_of: Callable[[int], Layout]
) -> tuple[Costs, dict[str, Codec]]:
    """Least squares of log(predicted / measured), Levenberg-Marquardt in the logarithms of the parameters.

    Logarithms: no cost can become negative, and a row of 10 us counts like one of 100 ms.
    """
    names, build = _build(found)
    measured = np.log([row["time_us"] * 1e-6 for row in rows])

    def residuals(logs: Vector) -> Vector:
        costs, codecs = build(logs)
        times = np.log([_time(row, costs, codecs, layout_of) for row in rows])
        return np.concatenate([_soften(times - measured), _HOLD * logs])

    logs = np.zeros(len(_COSTS) + len(names))
    now, damping = residuals(logs), 1e-2
    for _ in range(_ROUNDS):
        jacobian = np.stack(
            [(residuals(logs + 1e-4 * unit) - now) / 1e-4 for unit in np.eye(len(logs))], axis=1
        )
        normal, slope = jacobian.T @ jacobian, jacobian.T @ now
        improved = False
        for _ in range(10):
            step = np.linalg.solve(normal + damping * np.eye(len(logs)), -slope)
            tried = logs + np.clip(step, -1.5, 1.5)
            then = residuals(tried)
            if then @ then < now @ now:
                improved = bool(now @ now - then @ then > 1e-9 * (now @ now))
                logs, now, damping = tried, then, damping / 3
                break
            damping *= 4
        if not improved:
            break
    return build(logs)


def _with_unmeasured(codecs: dict[str, Codec], found: Measurements) -> dict[str, Codec]:
    """Also codecs that were only measured alone, slowed down like those that were measured both ways."""
    both = [codecs[name].encode_s / found.passes[name][0] for name in codecs if name in found.passes]
    factor = float(np.exp(np.mean(np.log(both)))) if both else 1.0
    more = {
        name: Codec(name, wire_bytes_per_element(name), encode * factor, decode * factor)
        for name, (encode, decode) in found.passes.items()
        if name not in codecs
    }
    return {**codecs, **more}


def _baselines(found: Measurements, layout_of: Callable[[int], Layout]) -> dict[str, Baseline]:
    result = {}
    for name in dict.fromkeys(row["codec"] for row in found.baselines):
        rows = [row for row in found.baselines if row["codec"] == name and row["world_size"] > 1]
        if not rows:
            continue
        rounds = np.array([2 * (row["world_size"] - 1) * layout_of(row["world_size"]).stretch for row in rows])
        sent = rounds * np.array([row["bytes"] / row["world_size"] for row in rows])
        times = np.array([row["time_us"] * 1e-6 for row in rows])
        # Relative least squares, both costs kept positive.
        system = np.stack([rounds, sent], axis=1) / times[:, None]
        costs, *_ = np.linalg.lstsq(system, np.ones(len(rows)), rcond=None)
        if costs[0] <= 0:
            costs = np.array([0.0, float((sent / times).sum() / ((sent / times) ** 2).sum())])
        result[name] = Baseline(name, float(costs[0]), float(max(costs[1], 0.0)))
    return result


def with_link(costs: Costs, bandwidth_bytes_s: float | None, latency_s: float | None) -> Costs:
    """The same machine on another link."""
    if bandwidth_bytes_s is not None:
        costs = replace(costs, wire_s=1 / bandwidth_bytes_s)
    return costs if latency_s is None else replace(costs, latency_s=latency_s)
