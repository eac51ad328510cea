"""More of what broke in other systems of this kind: disagreement, state, long tensors, choices of one rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from native_codec import difference
from ranks import RankPools, run_local
from reference import replay
from reference.bound import bound
from reference.encoder import to_f32
from replay_cases import TRANSPORTS, normal, run_over

import gcomm

Comm = gcomm.Communicator


# ---- 7: ranks that disagree --------------------------------------------------------------------------------

_DISAGREEMENTS: dict[str, tuple[Callable[[Comm], Any], str]] = {
    "count": (lambda c: c.all_reduce(torch.ones(100 + c.rank)), "count"),
    "large counts": (lambda c: c.all_reduce(torch.ones(300000 + 50000 * c.rank), codec="int8"), "count"),
    "dtype": (
        lambda c: c.all_reduce(torch.ones(100, dtype=[torch.float32, torch.bfloat16][c.rank % 2])),
        "dtype",
    ),
    "codec": (lambda c: c.all_reduce(torch.ones(50000), codec=["int8", "int4"][c.rank % 2]), "codec"),
    "option": (lambda c: c.all_reduce(torch.ones(50000), codec=["int8", "int8:crc=1"][c.rank % 2]), "codec"),
    "op": (lambda c: c.all_reduce(torch.ones(100), ["sum", "avg"][c.rank % 2]), "op"),
    "key": (lambda c: c.all_reduce(torch.ones(100), key="ab"[c.rank % 2]), "key"),
    "verb": (
        lambda c: c.all_reduce(torch.ones(100)) if c.rank % 2 else c.broadcast(torch.ones(100), 0),
        "verb",
    ),
    "root": (lambda c: c.broadcast(torch.ones(100), c.rank), "root"),
    "number of tensors": (
        lambda c: c.all_reduce_coalesced([torch.ones(10) for _ in range(2 + c.rank % 2)]),
        "number of tensors",
    ),
}


def _disagree(comm: Comm, names: list[str]) -> list[tuple[str, str, float]]:
    said = []
    for name in names:
        started = time.monotonic()
        try:
            _DISAGREEMENTS[name][0](comm)
            said.append(("nothing", "", 0.0))
        except gcomm.errors.MismatchError as error:
            said.append(("mismatch", str(error), time.monotonic() - started))
        # The communicator goes on, with right results.
        x = torch.full((5000,), float(comm.rank + 1))
        comm.all_reduce(x, codec="fp32:min_bytes=0")
        assert set(x.tolist()) == {comm.size * (comm.size + 1) / 2}
    return said


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_disagreements_raise_everywhere(transport: str, ranks: int, rank_pool: RankPools) -> None:
    """Different counts, dtypes or formats hung, or gave part sums: an error on every rank that names what
    differs.
    """
    names = list(_DISAGREEMENTS)
    results = run_over(transport, ranks, rank_pool, _disagree, names)
    for i, name in enumerate(names):
        texts = {results[rank][i][1] for rank in range(ranks)}
        for rank in range(ranks):
            kind, text, seconds = results[rank][i]
            assert kind == "mismatch", f"{name}: rank {rank} raised nothing"
            assert f"disagree on {_DISAGREEMENTS[name][1]}" in text
            assert seconds < 10
        assert len(texts) == 1, texts  # the same words on every rank


# ---- 9: an Inf poisoned the residual -----------------------------------------------------------------------


def _steps_with_an_inf(comm: Comm, text: str, bad_step: int) -> list[np.ndarray]:
    out = []
    for step in range(5):
        x = normal(comm.rank, 5003, step)
        if step == bad_step and comm.rank == 1:
            x[[3, 4200]] = np.inf, np.nan
        tensor = torch.from_numpy(x)
        comm.all_reduce(tensor, codec=text, key="w")
        out.append(tensor.numpy())
    return out


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "int8", "int4", "int2", "mxfp8", "nvfp4", "bf16"])
def test_inf_does_not_stay_in_the_residual(name: str) -> None:
    """Inf on one rank at one step poisoned error feedback for ever: the steps after it must be finite and
    right.
    """
    text = f"{name}:ef=1:min_bytes=0"
    results = run_local(_steps_with_an_inf, 3, text, 1)
    residuals = [np.zeros(5003, np.float32) for _ in range(3)]
    for step in range(5):
        inputs = [normal(rank, 5003, step) for rank in range(3)]
        if step == 1:
            inputs[1][[3, 4200]] = np.inf, np.nan
        want = replay.all_reduce(inputs, text, key="w", residuals=residuals)
        for rank in range(3):
            assert difference(results[rank][step], want) == "", (step, rank)
        if step == 1:
            assert not np.isfinite(want[[3, 4200]]).any()
        else:
            assert np.isfinite(want).all()


# ---- 11: 32-bit offsets ------------------------------------------------------------------------------------


def _needs(gigabytes: float) -> None:
    free = psutil.virtual_memory().available / 2**30
    if free < gigabytes:
        pytest.skip(f"needs {gigabytes} GiB of memory, {free:.1f} are free")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("text", ["int8", "nvfp4", "hadamard+int4"])
def test_more_than_two_billion_elements_in_a_codec(text: str) -> None:
    """32-bit offsets: encode and decode 2^31 + 4099 elements, and look beyond the 2^31st."""
    count = 2**31 + 4099
    _needs(2 * 2 * count / 2**30 + 3)
    x = np.zeros(count, np.float16)
    marks = [0, 2**31 - 1, 2**31, 2**31 + 4096, count - 1]
    x[marks] = [1, -2, 3, -1.5, 0.75]
    codec = gcomm.codec(text)
    data = codec.encode(x)
    assert len(data) == codec.wire_bytes(count)
    tail = 2**31 - 8192  # of whole tiles
    want = x[tail:].copy()
    del x
    out = np.empty(count, np.float16)
    codec.decode(data, out)
    alone = codec.encode(want)
    assert data[-len(alone) :] == alone
    back = np.empty(len(want), np.float16)
    codec.decode(alone, back)
    assert np.array_equal(back, out[tail:])
    off = np.abs(out[tail:].astype(np.float64) - want)
    assert (off <= bound(text, to_f32(want)) + 2.0**-11 * np.abs(want)).all()


def _huge_sum(comm: Comm, count: int) -> list[float]:
    x = torch.zeros(count, dtype=torch.bfloat16)
    places = [0, count // 2 - 1, count // 2, count - 1]
    x[places] = float(comm.rank + 1)
    comm.all_reduce(x, codec="int8")
    total = [float(x[place]) for place in places]
    return [*total, float(torch.count_nonzero(x))]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_more_than_two_billion_elements_in_a_call() -> None:
    """32-bit offsets and lengths: all_reduce of 2^31 + 5 elements, 4 GiB, between two ranks."""
    count = 2**31 + 5
    _needs(2 * 2 * count / 2**30 + 2)
    assert run_local(_huge_sum, 2, count, timeout=800) == [[3.0, 3.0, 3.0, 3.0, 4.0]] * 2


# ---- 12: state ---------------------------------------------------------------------------------------------


def _train(comm: Comm, text: str, steps: range, state: Any, as_object: bool) -> tuple[list[np.ndarray], Any]:
    """Steps of two tensors in changing order; returns the results and the state at the end."""
    codec: Any = gcomm.codec(text) if as_object else text
    holder = codec if as_object else comm
    if state is not None:
        holder.load_state_dict(state)
    out = []
    for step in steps:
        order = ["a", "b"] if step % 3 else ["b", "a"]
        for key in order:
            x = torch.from_numpy(normal(comm.rank, {"a": 5003, "b": 3000}[key], 10 * step + (key == "b")))
            comm.all_reduce(x, codec=codec, key=key)
            out.append(x.numpy())
    return out, holder.state_dict()


def _train_and_resume(comm: Comm, text: str, as_object: bool) -> tuple[list[np.ndarray], Any]:
    return _train(comm, text, range(3), None, as_object)


def _resume(comm: Comm, text: str, as_object: bool, states: list[Any]) -> tuple[list[np.ndarray], Any]:
    return _train(comm, text, range(3, 6), states[comm.rank], as_object)


def _all_steps(comm: Comm, text: str, as_object: bool) -> tuple[list[np.ndarray], Any]:
    return _train(comm, text, range(6), None, as_object)


@pytest.mark.parametrize("as_object", [False, True])
@pytest.mark.parametrize(
    "text", ["int4:ef=1", "nvfp4:rounding=stochastic:seed=5", "int2:rounding=stochastic:ef=1"]
)
def test_saved_state_resumes_with_the_same_bits(text: str, as_object: bool) -> None:
    """Residuals were left out of checkpoints, or kept by the order of calls, which changes: by key, and
    saved.
    """
    text += ":min_bytes=0"
    whole = run_local(_all_steps, 3, text, as_object)
    before = run_local(_train_and_resume, 3, text, as_object)
    after = run_local(_resume, 3, text, as_object, [state for _, state in before])
    forgotten = run_local(_train, 3, text, range(3, 6), None, as_object)
    for rank in range(3):
        resumed = before[rank][0] + after[rank][0]
        for i, (got, want) in enumerate(zip(resumed, whole[rank][0], strict=True)):
            assert difference(got, want) == "", (rank, i)
        assert after[rank][1] == whole[rank][1]
    assert any(difference(a, b) for a, b in zip(forgotten[0][0], after[0][0], strict=True)), (
        "state had no effect"
    )


def _subgroup_steps(rank: int, _size: int, transport: str) -> list[np.ndarray] | None:
    group = dist.new_group([0, 2])
    if rank == 1:
        return None
    text = "int4:ef=1:min_bytes=0"
    with Comm.from_torch(group, transport=transport) as comm:
        whole, _ = _train(comm, text, range(4), None, False)
    with Comm.from_torch(group, transport=transport) as comm:
        first, state = _train(comm, text, range(2), None, False)
    with Comm.from_torch(group, transport=transport) as comm:
        second, _ = _train(comm, text, range(2, 4), state, False)
    for got, want in zip(first + second, whole, strict=True):
        assert difference(got, want) == ""
    return whole


@pytest.mark.parametrize("transport", ["tcp", "torch"])
def test_saved_state_resumes_in_a_subgroup(transport: str, rank_pool: RankPools) -> None:
    """The same with ranks 0 and 2 of three, whose ranks in the group are not those in the job."""
    first, _, second = rank_pool(3).run(_subgroup_steps, transport)
    for got, other in zip(first, second, strict=True):
        assert difference(got, other) == ""


def test_a_key_names_one_tensor() -> None:
    """A residual of another size is an error, not a silent start from zero."""

    def body(comm: Comm) -> None:
        comm.all_reduce(torch.ones(100), codec="int4:ef=1", key="w")
        with pytest.raises(ValueError, match=r"'w'.*100.*101"):
            comm.all_reduce(torch.ones(101), codec="int4:ef=1", key="w")

    run_local(body, 2)


# ---- 14: a measurement on one rank decided -----------------------------------------------------------------


def _unlike_ranks(comm: Comm, counts: list[int]) -> list[str]:
    """The same calls with everything else different: speed, data, history, hints in the environment."""
    rng = np.random.default_rng(comm.rank)
    paths = []
    if comm.rank == 1:
        gcomm.codec("int8").encode(np.ones(300000, np.float32))  # another history
    for count in counts:
        time.sleep(float(rng.uniform(0, 0.004)) * (comm.rank + 1))
        x = torch.zeros(count) if comm.rank == 0 else torch.from_numpy(normal(comm.rank, count))
        for name in ("fp8_e4m3", "nvfp4", "bf16"):
            work = comm.all_reduce(x.clone(), codec=name, async_op=True, timeout=20)
            assert work is not None
            work.wait()
            paths.append(work.stats["path"])
    return paths


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_choose_alike_whatever_they_measure(transport: str, ranks: int, rank_pool: RankPools) -> None:
    """A timing of one rank chose the algorithm, ranks disagreed, and the job hung."""
    counts = [1, 500, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193, 20000]
    results = run_over(transport, ranks, rank_pool, _unlike_ranks, counts)
    assert all(paths == results[0] for paths in results)
    assert set(results[0]) == {"raw", "direct"}
