"""Cases of the conformance suite: what a rank does with one, and what the independent replay expects of it.

A case is a few words and numbers. Ranks, in whatever process or thread, make its inputs from them, call gcomm
and send digests back; the test makes the same inputs for all ranks and replays them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from native_codec import difference
from numpy.typing import NDArray
from ranks import RankPools, run_local
from reference import replay
from reference.encoder import from_f32
from reference.spec import parse

import gcomm

Array = NDArray[Any]
TRANSPORTS = ("local", "tcp", "torch")


@dataclass(frozen=True)
class Case:
    """One call, or ``calls`` of them in a row with one key."""

    verb: str
    codec: str | None
    counts: tuple[int, ...]  # one a tensor (all_reduce, broadcast...); all_to_all: a row a rank
    op: str = "sum"
    dtype: str = "float32"
    kind: str = "normal"
    seed: int = 0
    key: str | None = None
    calls: int = 1
    root: int = 0
    in_place: bool = True


# ---- inputs, on every rank and in the test -------------------------------------------------------------------


def make_values(case: Case, rank: int, call: int, index: int, count: int) -> Array:
    """Rank's input of a call's tensor: float32, float16, or uint16 (bf16 bits)."""
    rng = np.random.default_rng([case.seed, rank, call, index])
    x = rng.standard_normal(count) * 10.0 ** rng.uniform(-3, 1, count)
    if case.kind == "specials":
        where = rng.random(count)
        x = np.where(where < 0.005, np.nan, np.where(where < 0.01, np.inf, np.where(where < 0.015, -np.inf, x)))
    elif case.kind == "zeros":
        x = np.where(rng.random(count) < 0.5, 0.0, -0.0)
    elif case.kind == "large":
        x = np.clip(x, -1, 1) * {"float32": 3.4e38, "bfloat16": 3.3e38, "float16": 65504.0}[case.dtype]
    return from_f32(x.astype(np.float32), case.dtype, saturate=True)


def as_tensor(x: Array, dtype: str) -> torch.Tensor:
    """The same bits as a torch tensor with memory of its own."""
    if dtype == "bfloat16":
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def as_array(tensor: torch.Tensor) -> Array:
    """And back."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def inputs_of(case: Case, ranks: int, call: int, index: int, count: int) -> list[Array]:
    """All ranks' inputs of one tensor."""
    return [make_values(case, rank, call, index, count) for rank in range(ranks)]


# ---- on a rank -----------------------------------------------------------------------------------------------


def _all_reduce(
    comm: gcomm.Communicator, case: Case, tensors: list[torch.Tensor]
) -> tuple[list[Any], gcomm.Work]:
    common: dict[str, Any] = {"codec": case.codec, "async_op": True}
    if len(tensors) > 1:
        keys = None if case.key is None else [f"{case.key}/{i}" for i in range(len(tensors))]
        return tensors, gcomm.all_reduce_coalesced(tensors, case.op, comm, keys=keys, **common)
    out = None if case.in_place else torch.full_like(tensors[0], 7)
    work = gcomm.all_reduce(tensors[0], case.op, comm, key=case.key, out=out, **common)
    return [tensors[0] if out is None else out], work


def _call(comm: gcomm.Communicator, case: Case, call: int) -> tuple[list[Array], str]:
    rank, size = comm.rank, comm.size
    common: dict[str, Any] = {"codec": case.codec, "key": case.key, "async_op": True}
    per_rank = {"reduce_scatter": size}.get(case.verb, 1)
    if case.verb == "all_to_all":
        sent, received = list(case.counts[rank * size : (rank + 1) * size]), list(case.counts[rank::size])
        values = [make_values(case, rank, call, 0, sum(sent))]
    else:
        values = [make_values(case, rank, call, i, count * per_rank) for i, count in enumerate(case.counts)]
    tensors = [as_tensor(x, case.dtype) for x in values]
    first = tensors[0]
    if case.verb == "all_reduce":
        outputs, work = _all_reduce(comm, case, tensors)
    elif case.verb == "reduce_scatter":
        outputs = [torch.full((case.counts[0],), 7, dtype=first.dtype)]
        work = gcomm.reduce_scatter_tensor(outputs[0], first, case.op, comm, **common)
    elif case.verb == "all_gather":
        outputs = [torch.full((case.counts[0] * size,), 7, dtype=first.dtype)]
        work = gcomm.all_gather_into_tensor(outputs[0], first, comm, **common)
    elif case.verb == "all_to_all":
        outputs = [torch.full((sum(received),), 7, dtype=first.dtype)]
        work = gcomm.all_to_all_single(outputs[0], first, received, sent, comm, **common)
    elif case.verb == "broadcast":
        outputs = [first]
        work = gcomm.broadcast(first, case.root, comm, **common)
    else:
        return _ring(comm, case, first)
    work.wait()
    untouched = case.verb == "broadcast" or (case.verb == "all_reduce" and case.in_place)
    if not untouched:
        for tensor, x in zip(tensors, values, strict=True):
            assert difference(as_array(tensor), x) == "", "the input was written to"
    return [as_array(t) for t in outputs], str(work.stats["path"])


def _ring(comm: gcomm.Communicator, case: Case, mine: torch.Tensor) -> tuple[list[Array], str]:
    """Everybody sends to the next rank and receives from the one before."""
    got = torch.full_like(mine, 7)
    common: dict[str, Any] = {"codec": case.codec, "key": case.key, "async_op": True}
    sending = gcomm.send(mine, (comm.rank + 1) % comm.size, comm, **common)
    receiving = gcomm.recv(got, (comm.rank - 1) % comm.size, comm, **common)
    sending.wait()
    receiving.wait()
    return [as_array(got)], str(sending.stats["path"])


def digest(arrays: Sequence[Array]) -> str:
    """Of bits."""
    return hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest()


def run_cases(comm: gcomm.Communicator, cases: Sequence[Case], *, whole: bool = False) -> list[Any]:
    """What a rank does: (digest or arrays, path) of each case's last call."""
    results: list[Any] = []
    for case in cases:
        for call in range(case.calls):
            arrays, path = _call(comm, case, call)
        results.append((arrays if whole else digest(arrays), path))
    return results


@contextlib.contextmanager
def slots_of(slot_bytes: int | None) -> Iterator[None]:
    """GCOMM_SLOT_BYTES, which a communicator reads when it is made."""
    if slot_bytes is not None:
        os.environ["GCOMM_SLOT_BYTES"] = str(slot_bytes)
    try:
        yield
    finally:
        os.environ.pop("GCOMM_SLOT_BYTES", None)


def run_cases_on_group(rank: int, size: int, transport: str, cases: Sequence[Case], how: Any) -> list[Any]:
    """The same in a process that has a torch group."""
    whole, slot_bytes = how
    with slots_of(slot_bytes), gcomm.Communicator.from_torch(None, transport=transport) as comm:
        assert (comm.rank, comm.size) == (rank, size)
        return run_cases(comm, cases, whole=whole)


def run_everywhere(
    transport: str,
    ranks: int,
    cases: Sequence[Case],
    pools: RankPools,
    *,
    whole: bool = False,
    slot_bytes: int | None = None,
) -> list[list[Any]]:
    """[rank][case] results over a transport."""
    if transport == "local":

        def body(comm: gcomm.Communicator) -> list[Any]:
            return run_cases(comm, cases, whole=whole)

        with slots_of(slot_bytes):
            return run_local(body, ranks, timeout=240)
    return pools(ranks).run(run_cases_on_group, transport, list(cases), (whole, slot_bytes), timeout=240)


def normal(rank: int, count: int, seed: int = 0) -> NDArray[np.float32]:
    """A rank's numbers for tests that need no special ones."""
    return np.random.default_rng([seed, rank]).standard_normal(count).astype(np.float32)


def _with_communicator(_rank: int, _size: int, transport: str, fn: Callable[..., Any], args: Any) -> Any:
    with gcomm.Communicator.from_torch(None, transport=transport) as comm:
        return fn(comm, *args)


def run_over(transport: str, ranks: int, pools: RankPools, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """fn(comm, *args) on every rank of a transport; results in rank order."""
    if transport == "local":
        return run_local(fn, ranks, *args)
    return pools(ranks).run(_with_communicator, transport, fn, args)


# ---- what is expected ----------------------------------------------------------------------------------------


def _reduced(case: Case, ranks: int) -> list[list[Array]]:
    outputs: list[list[Array]] = [[] for _ in range(ranks)]
    for index, count in enumerate(case.counts):
        key = case.key or ""
        if len(case.counts) > 1 and case.key is not None:
            key = f"{case.key}/{index}"
        total = count * ranks if case.verb == "reduce_scatter" else count
        spec = parse(case.codec) if case.codec else None
        residuals = None
        if spec is not None and spec.error_feedback:
            residuals = [np.zeros(total, np.float32) for _ in range(ranks)]
        for call in range(case.calls):
            inputs = inputs_of(case, ranks, call, index, total)
            number = call if case.key is not None else 0
            raw = spec is None or replay.takes_raw_path(case.codec, ranks, count, case.dtype, case.verb)
            policy = spec.nonfinite if spec is not None else "propagate"
            if case.verb == "reduce_scatter" and raw:
                result = replay.raw_sum(inputs, case.op, nonfinite=policy)
                each = [result[rank * count : (rank + 1) * count] for rank in range(ranks)]
            elif case.verb == "reduce_scatter":
                each = replay.reduce_scatter(
                    inputs, case.codec, case.op, key=key, call=number, residuals=residuals
                )
            elif raw:
                each = [replay.raw_sum(inputs, case.op, nonfinite=policy)] * ranks
            else:
                result = replay.all_reduce(
                    inputs, case.codec, case.op, key=key, call=number, residuals=residuals
                )
                each = [result] * ranks
        for rank in range(ranks):
            outputs[rank].append(each[rank])
    return outputs


def _moved(case: Case, ranks: int) -> list[list[Array]]:
    text = case.codec
    where: dict[str, Any] = {"key": case.key or ""}
    if case.verb == "all_to_all":
        rows = [list(case.counts[rank * ranks : (rank + 1) * ranks]) for rank in range(ranks)]
        inputs = [make_values(case, rank, 0, 0, sum(rows[rank])) for rank in range(ranks)]
        return [[x] for x in replay.all_to_all(inputs, rows, text, **where)]
    inputs = inputs_of(case, ranks, 0, 0, case.counts[0])
    if case.verb == "all_gather":
        return [[replay.all_gather(inputs, text, **where)]] * ranks
    if case.verb == "broadcast":
        raw = replay.goes_raw(text, ranks, inputs[case.root])
        return [[replay.moved(inputs[case.root], text, source=case.root, raw=raw, **where)]] * ranks
    assert case.verb == "ring"
    sources = [(rank - 1) % ranks for rank in range(ranks)]
    raw = replay.goes_raw(text, 2, inputs[0])
    return [[replay.moved(inputs[source], text, source=source, raw=raw, **where)] for source in sources]


@cache
def expected_digests(case: Case, ranks: int) -> tuple[str, ...]:
    """Of every rank's outputs; cached, since every transport must give the same."""
    return tuple(digest(arrays) for arrays in expected(case, ranks))


def expected(case: Case, ranks: int) -> list[list[Array]]:
    """Every rank's outputs of the case's last call."""
    reduces = case.verb in ("all_reduce", "reduce_scatter")
    return _reduced(case, ranks) if reduces else _moved(case, ranks)


def paths_of(case: Case, ranks: int) -> set[str]:
    """What a call's statistics may say of its path."""
    if case.verb == "all_to_all" or case.codec is None or not any(case.counts):
        return {"raw", "direct"}
    peers = 2 if case.verb == "ring" else ranks
    rule = partial(replay.takes_raw_path, case.codec, peers, dtype=case.dtype, verb=case.verb)
    raw = [rule(count) for count in case.counts if count]
    return {"raw"} if all(raw) else {"direct"}


def check(
    transport: str, ranks: int, cases: Sequence[Case], pools: RankPools, *, slot_bytes: int | None = None
) -> None:
    """Run cases and compare every rank's bits with the replay; says which case, rank and element differ."""
    results = run_everywhere(transport, ranks, cases, pools, slot_bytes=slot_bytes)
    wrong = []
    for i, case in enumerate(cases):
        want = expected_digests(case, ranks)
        for rank in range(ranks):
            got, path = results[rank][i]
            if path not in paths_of(case, ranks):
                wrong.append((case, rank, f"took the {path} path"))
            elif got != want[rank]:
                wrong.append((case, rank, ""))
    if not wrong:
        return
    lines = [f"{len(wrong)} of {len(cases) * ranks} results differ over {transport}, {ranks} ranks"]
    for case, rank, text in wrong[:5]:
        detail = text
        if not text:
            again = run_everywhere(transport, ranks, [case], pools, whole=True, slot_bytes=slot_bytes)[rank][0][
                0
            ]
            found = [difference(a, b) for a, b in zip(again, expected(case, ranks)[rank], strict=True)]
            detail = "; ".join(d for d in found if d) or "not on a second run: not deterministic"
        lines.append(f"rank {rank}, {case}: {detail}")
    raise AssertionError("\n".join(lines))


def numbered(cases: Sequence[Case]) -> list[Case]:
    """Distinct seeds and keys: no two cases can be mixed up, nor share a codec's state."""
    return [
        replace(case, seed=i, key=None if case.key is None else f"{case.key}{i}")
        for i, case in enumerate(cases)
    ]
