"""What each rank does in ``gcomm bench COLLECTIVE``: verify, warm up, time in turn, verify again.

A *contender* is one line of the table: a codec of ours, or a baseline. All contenders of a size are timed in
turn (A B A B ...), so that whatever else the machine does meets all of them alike. Nothing but the call itself
is timed: before each timed iteration an in-place input is restored and all ranks meet at a barrier. An
iteration's time is that of its slowest rank; the row gives the median over iterations.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import gcomm
from gcomm.cli import oracle
from gcomm.cli.baselines import BASELINES
from gcomm.cli.buffers import REDUCIBLE, SLICE, Buffer, as_float32, filled, generate, itemsize
from gcomm.cli.collectives import COLLECTIVES, Call, Collective
from gcomm.cli.launch import Emit, Message
from gcomm.cli.world import World

TILE = oracle.TILE


@dataclass(frozen=True)
class Plan:
    """The arguments of one ``gcomm bench COLLECTIVE``; plain values, so that it travels as JSON."""

    collective: str
    sizes: list[int]
    dtype: str
    op: str
    contenders: list[str]
    iterations: int
    warmup: int
    check: int
    aggregate: int


@dataclass
class Contender:
    """One codec or baseline at one size, on this rank."""

    name: str
    row: Collective
    world: World
    plan: Plan
    count: int
    pristine: npt.NDArray[Any]
    work_input: Buffer
    output: Buffer
    stats: dict[str, float] = field(default_factory=dict)
    raw_path: bool = False  # the last checked call went unencoded

    @property
    def is_baseline(self) -> bool:
        """Whether another library does the work."""
        return self.name in BASELINES

    @property
    def rule(self) -> oracle.Rule:
        """Error bound of the last checked call."""
        return oracle.Rule.parse("none" if self.raw_path else self.name)

    def restore(self) -> None:
        """Undo what a call in place did to the input."""
        if self.row.in_place:
            np.copyto(self.work_input.array, self.pristine)

    def barrier(self) -> None:
        """All ranks meet, by the means of the contender's own library."""
        if self.is_baseline:
            BASELINES[self.name].calls["barrier"](self.work_input, self.output, self.plan.op)
        else:
            self.world.barrier()

    def bind(self) -> Callable[[], None]:
        """The call to time, with everything looked up beforehand."""
        if self.is_baseline:
            run, op = BASELINES[self.name].calls[self.row.name], self.plan.op
            return lambda: run(self.work_input, self.output, op)
        call = self._call(self._key("bench"), async_op=False)
        return lambda: _discard(self.row.run(call))

    def checked_call(self, number: int) -> None:
        """One call that is verified afterwards, with its statistics kept."""
        self.restore()
        if not self.row.in_place:
            self.output.poison()
        elif self.row.name == "broadcast" and self.world.rank != 0:
            self.work_input.poison()
        self.barrier()
        if self.is_baseline:
            self.bind()()
            return
        # A residual of an earlier call would belong to the result: with error feedback every check has its own
        # key.
        works = self.row.run(self._call(self._key(f"check.{number}"), async_op=True))
        self.stats = {}
        for work in works:
            work.wait()
            self.raw_path = work.stats["path"] == "raw"
            for name in ("raw_bytes", "wire_bytes"):
                self.stats[name] = self.stats.get(name, 0) + float(work.stats[name])

    def _key(self, use: str) -> str | None:
        """A key where the codec keeps residuals: of one size, so every size has its own."""
        return f"{use}.{self.count}" if "ef=1" in self.name.split(":") else None

    def _call(self, key: str | None, *, async_op: bool) -> Call:
        codec = None if self.name == "none" else self.name
        return Call(self.world.comm, self.work_input, self.output, self.plan.op, codec, key, async_op)


def _discard(_works: list[gcomm.Work]) -> None:
    pass


# ---- one size ------------------------------------------------------------------------------------------------


def measure(world: World, config: Message, emit: Emit) -> None:
    """Run a whole sweep; emits ``{"media": text}``, then ``{"progress": text}`` and ``{"row": row}``."""
    plan = Plan(**config)
    emit({"media": world.media})
    row = COLLECTIVES[plan.collective]
    for size in [0] if row.name == "barrier" else plan.sizes:
        count = size // itemsize(plan.dtype) // (world.size if row.split else 1)
        contenders = _contenders(world, plan, row, count)
        verdicts: list[Verdict] = []
        for contender in contenders:
            emit({"progress": f"{row.name} {size} B, {contender.name}: verify"})
            verdict = Verdict()
            for number in range(plan.check):
                contender.checked_call(number)
                verdict.add(verify(contender))
            verdicts.append(verdict)
        emit({"progress": f"{row.name} {size} B: time"})
        times = time_in_turn(contenders, plan)
        for contender, verdict, samples in zip(contenders, verdicts, times, strict=True):
            contender.checked_call(plan.check)
            verdict.add(verify(contender))
            slowest = world.gather(np.array(samples)).max(axis=0) / plan.aggregate
            emit({"row": _json_row(contender, count, slowest, verdict.summed(world))})


def _contenders(world: World, plan: Plan, row: Collective, count: int) -> list[Contender]:
    pristine = filled(plan.dtype, world.rank, row.parts_in(world.size), count)
    # Ours and the baseline get the same kind of object: a torch tensor where torch takes part.
    buffer = functools.partial(Buffer.over, dtype=plan.dtype, for_torch=world.has_torch_group)
    work_input = buffer(pristine.copy() if row.in_place else pristine)
    output = work_input if row.in_place else buffer(np.empty(row.parts_out(world.size) * count, pristine.dtype))
    return [Contender(name, row, world, plan, count, pristine, work_input, output) for name in plan.contenders]


def time_in_turn(contenders: list[Contender], plan: Plan) -> list[list[float]]:
    """Seconds of each iteration on this rank, one list a contender."""
    calls = [contender.bind() for contender in contenders]
    times: list[list[float]] = [[] for _ in contenders]
    for iteration in range(-plan.warmup, plan.iterations):
        for contender, call, samples in zip(contenders, calls, times, strict=True):
            contender.restore()
            contender.barrier()
            begin = time.perf_counter()
            for _ in range(plan.aggregate):
                call()
            end = time.perf_counter()
            if iteration >= 0:
                samples.append(end - begin)
    return times


def _json_row(contender: Contender, count: int, slowest: npt.NDArray[np.float64], verdict: Verdict) -> Message:
    row, plan, ranks = contender.row, contender.plan, contender.world.size
    total = count * itemsize(plan.dtype) * (ranks if row.split else 1)
    nominal = row.factor(ranks) * total if row.name != "barrier" else 0.0
    mine = np.array([contender.stats.get("raw_bytes", nominal), contender.stats.get("wire_bytes", nominal)])
    raw, wire = contender.world.gather(mine).max(axis=0)
    seconds = float(np.median(slowest))
    algbw = total / seconds / 1e9
    return {
        "collective": row.name,
        "transport": (
            BASELINES[contender.name].transport if contender.is_baseline else contender.world.comm.transport
        ),
        "world_size": ranks,
        "codec": contender.name,
        "dtype": plan.dtype,
        "bytes": total,
        "count": count,
        "time_us": seconds * 1e6,
        "time_us_min": float(slowest.min()) * 1e6,
        "time_us_max": float(slowest.max()) * 1e6,
        "algbw": algbw,
        "busbw": algbw * row.factor(ranks),
        "wire_bytes": int(wire),
        "raw_bytes": int(raw),
        "rel_err": verdict.relative_error,
        "wrong": verdict.wrong,
    }


# ---- verification --------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What verification has found so far on this rank."""

    wrong: int = 0
    error_squared: float = 0.0
    exact_squared: float = 0.0

    def add(self, other: Verdict) -> None:
        """Count another part's findings in."""
        self.wrong += other.wrong
        self.error_squared += other.error_squared
        self.exact_squared += other.exact_squared

    def summed(self, world: World) -> Verdict:
        """The same over all ranks."""
        mine = np.array([self.wrong, self.error_squared, self.exact_squared], np.float64)
        wrong, error, exact = world.gather(mine).sum(axis=0)
        return Verdict(int(wrong), float(error), float(exact))

    @property
    def relative_error(self) -> float:
        """Root of summed squared errors over root of summed squares."""
        return float(np.sqrt(self.error_squared / self.exact_squared)) if self.exact_squared else 0.0


def verify(contender: Contender) -> Verdict:
    """Compare the output with the oracle, element by element, and between ranks, bit by bit.

    Where all ranks must hold the same bits, equal checksums are required and the ranks share the comparison
    with the oracle, a slice each in turn.
    """
    world, row = contender.world, contender.row
    verdict = Verdict()
    index = 0
    for part in range(row.parts_out(world.size)):
        for start in range(0, contender.count, SLICE):
            length = min(SLICE, contender.count - start)
            begin = part * contender.count + start
            result = contender.output.array[begin : begin + length]
            if row.replicated:
                verdict.wrong += _differing(world, result)
            if not row.replicated or index % world.size == world.rank:
                verdict.add(_compare(contender, part, start, result))
            index += 1
    return verdict


def _differing(world: World, result: npt.NDArray[Any]) -> int:
    """Elements whose bits differ from rank 0's."""
    digest = np.frombuffer(hashlib.blake2b(result.tobytes(), digest_size=16).digest(), np.uint8)
    digests = world.gather(digest)
    if (digests == digests[0]).all():
        return 0
    width = np.dtype(f"V{result.itemsize}")
    return int((world.gather(result)[0].view(width) != result.view(width)).sum())


def _compare(contender: Contender, part: int, start: int, result: npt.NDArray[Any]) -> Verdict:
    world, row, plan = contender.world, contender.row, contender.plan
    rank, source_part = row.source(world.rank, world.size, part)
    piece = start // SLICE
    if plan.dtype not in REDUCIBLE:
        expected = generate(plan.dtype, (rank, source_part, piece), result.size)
        return Verdict(wrong=int((expected != result).sum()))
    if row.reduces:
        inputs = [
            as_float32(generate(plan.dtype, (each, source_part, piece), result.size), plan.dtype)
            for each in range(world.size)
        ]
        exact, bound = _expected_sum(contender, inputs, start)
    else:
        x = as_float32(generate(plan.dtype, (rank, source_part, piece), result.size), plan.dtype)
        kept = contender.is_baseline or (row.name == "all_to_all" and rank == world.rank)
        rule = oracle.Rule.parse("none") if kept else contender.rule
        exact, bound = oracle.moved(x, rule, plan.dtype)
    error = np.abs(as_float32(result, plan.dtype).astype(np.float64) - exact)
    return Verdict(
        wrong=int((~(error <= bound)).sum()),
        error_squared=float(np.square(error).sum()),
        exact_squared=float(np.square(exact).sum()),
    )


def _expected_sum(
    contender: Contender, inputs: list[oracle.F32], start: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    world, row, plan = contender.world, contender.row, contender.plan
    if contender.is_baseline:
        exact, bound = oracle.summed_in_dtype(inputs, plan.dtype)
        return (exact / world.size, bound / world.size) if plan.op == "avg" else (exact, bound)
    elements = np.arange(start, start + inputs[0].size)
    owner = np.full(elements.size, world.rank)
    if row.name == "all_reduce":
        shard = math.ceil(math.ceil(contender.count / world.size) / TILE) * TILE
        owner = elements // shard
    return oracle.reduced(
        inputs,
        owner,
        contender.rule,
        average=plan.op == "avg",
        requantised=row.name == "all_reduce",
        dtype=plan.dtype,
    )
