"""What broke in other systems of this kind, a test for each thing that the core could get wrong in the same
way.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from native_codec import NativeCodec, difference
from ranks import RankPools, run_local
from reference import replay
from reference.bound import all_reduce_bound, bound
from reference.encoder import to_f32
from reference.spec import BLOCK, FORMATS, Q_MAX
from replay_cases import TRANSPORTS, as_array, as_tensor

import gcomm

Comm = gcomm.Communicator
processes = pytest.mark.parametrize("transport", ["tcp", "torch"])


def _normal(rank: int, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, rank]).standard_normal(count).astype(np.float32)


def _over(transport: str, ranks: int, pools: RankPools, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """fn(comm, *args) on every rank of a transport."""
    if transport == "local":
        return run_local(fn, ranks, *args)
    return pools(ranks).run(_with_communicator, transport, fn, args)


def _with_communicator(_rank: int, _size: int, transport: str, fn: Callable[..., Any], args: Any) -> Any:
    with Comm.from_torch(None, transport=transport) as comm:
        return fn(comm, *args)


# ---- 1: the owner of a shard kept its unquantised value ----------------------------------------------------


def _sum_of_random(comm: Comm, text: str, count: int) -> np.ndarray:
    x = torch.from_numpy(_normal(comm.rank, count))
    comm.all_reduce(x, codec=text)
    return x.numpy()


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", FORMATS)
def test_owner_uses_the_decoded_sum_like_everybody(name: str, ranks: int) -> None:
    """The owner of a shard kept its own exact sum while others decoded the quantised one: replicas drift
    apart.
    """
    results = run_local(_sum_of_random, ranks, f"{name}:min_bytes=0", 20000)
    for other in results[1:]:
        assert difference(other, results[0]) == ""
    # Every element, each owner's too, is one that the format can hold.
    codec = NativeCodec(name)
    for shard in replay.shards(20000, ranks):
        inputs = [_normal(rank, 20000) for rank in range(ranks)]
        exact = replay.raw_sum(inputs, "sum")[shard]
        if name != "fp32":
            assert difference(results[0][shard], exact) != "", "the shard was not quantised"
    assert len(codec.encode(results[0])) == codec.wire_bytes(20000)


# ---- 2: quantised AVG and its fallback scaled differently --------------------------------------------------


def _average_of_equals(
    comm: Comm, text: str | None, value: float, dtype: torch.dtype, count: int
) -> set[float]:
    x = torch.full((count,), value, dtype=dtype)
    comm.all_reduce(x, "avg", codec=text)
    return set(x.tolist())


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8])
def test_average_has_one_scale_on_every_path(ranks: int) -> None:
    """The quantised average and its uncompressed fallback were divided differently."""
    for name in FORMATS:
        # With this absmax the scale is a power of two and the value a level, so each path must give it exactly.
        value = 2688.0 if name == "nvfp4" else float(Q_MAX.get(name, 3))
        for text in (f"{name}:min_bytes=0", f"{name}:min_bytes=1000000000", name, None):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                results = run_local(_average_of_equals, ranks, text, value, dtype, 200)
                assert results == [{value}] * ranks, (text, dtype, results)


# ---- 3: odd world sizes and counts -------------------------------------------------------------------------


def _sums_of_counts(comm: Comm, text: str, counts: list[int]) -> list[np.ndarray]:
    out = []
    for count in counts:
        x = torch.from_numpy(_normal(comm.rank, count))
        comm.all_reduce(x, codec=text)
        out.append(x.numpy())
    return out


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["fp8_e4m3", "int4", "nvfp4"])
def test_odd_counts_on_three_ranks(transport: str, name: str, rank_pool: RankPools) -> None:
    """Three ranks, and counts that nothing divides: 0, 1, 2, N - 1, N + 1, 7, a prime, one past a block."""
    counts = [0, 1, 2, 2, 4, 7, 1009, BLOCK[name] + 1, 4097]
    text = f"{name}:min_bytes=0"
    results = _over(transport, 3, rank_pool, _sums_of_counts, text, counts)
    for i, count in enumerate(counts):
        want = replay.all_reduce([_normal(rank, count) for rank in range(3)], text)
        for rank in range(3):
            assert difference(results[rank][i], want) == "", (count, rank)


# ---- 4: a (count, 1) view had a scale for each element -----------------------------------------------------


def _bytes_of_shapes(comm: Comm, text: str, shapes: list[tuple[int, ...]]) -> list[tuple[int, int, str]]:
    rows = []
    for shape in shapes:
        x = torch.ones(shape)
        work = comm.all_reduce(x, codec=text, async_op=True)
        assert work is not None
        work.wait()
        rows.append((work.stats["wire_bytes"], work.stats["raw_bytes"], work.stats["path"]))
    return rows


@pytest.mark.parametrize("ranks", [2, 3])
def test_shape_does_not_change_the_bytes(ranks: int) -> None:
    """A (count, 1) view made each element a row with a scale of its own, 8 bytes an element: more than fp32."""
    count = 60000
    shapes = [(count,), (count, 1), (1, count), (count // 8, 8), (2, 3, count // 6)]
    for name in FORMATS:
        for rows in run_local(_bytes_of_shapes, ranks, name, shapes):
            assert len(set(rows)) == 1, (name, rows)
            wire, raw, path = rows[0]
            # Never more than unencoded, but for headers; the formats below 16 bits save what they promise.
            assert wire <= raw * 1.02 + 1000, (name, rows[0])
            if path == "direct":
                sent = NativeCodec(name).wire_bytes(count) * 2 * (ranks - 1) / ranks
                assert wire <= sent * 1.05 + 4096 * 4 * ranks, (name, wire, sent)


def test_small_calls_take_the_raw_path_rather_than_grow() -> None:
    """Codes of a few elements fill whole blocks: such calls go raw, and the bytes are those of raw."""
    for count in (1, 2, 7, 100):
        for wire, raw, path in itertools.chain(*run_local(_bytes_of_shapes, 2, "fp8_e4m3", [(count,)])):
            assert path == "raw"
            assert wire <= raw + 400


# ---- 5: strided views were summed wrongly ------------------------------------------------------------------


def _strided_views(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "every second": x[::2],
        "transposed": x[:600].view(20, 30).t(),
        "a column": x[:600].view(20, 30)[:, 3],
        "a narrow part": x[:600].view(20, 30)[:, 4:9],
        "channels last": x[:720].view(2, 3, 10, 12).to(memory_format=torch.channels_last),
        "permuted": x[:720].view(2, 3, 10, 12).permute(3, 1, 0, 2),
    }


def _sum_of_views(comm: Comm, text: str | None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    out = {}
    for name in _strided_views(torch.zeros(2000)):
        whole = torch.from_numpy(_normal(comm.rank, 2000))
        view = _strided_views(whole)[name]
        before = view.clone().contiguous().numpy().reshape(-1)
        outside = whole.clone()
        comm.all_reduce(view, codec=text)
        after = view.clone().contiguous().numpy().reshape(-1)
        # What the view does not cover must be as before.
        covered = torch.zeros(2000)
        _strided_views(covered)[name].fill_(1)
        untouched = whole[covered == 0] - outside[covered == 0]
        out[name] = (before, after, untouched.numpy())
    return out


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_strided_views_are_reduced_right(transport: str, rank_pool: RankPools) -> None:
    """A strided view was summed wrongly and differently on each rank, without a word."""
    for text in (None, "fp8_e4m3:min_bytes=0"):
        results = _over(transport, 2, rank_pool, _sum_of_views, text)
        for name, (first, got, untouched) in results[0].items():
            second, other, _ = results[1][name]
            want = replay.all_reduce([first, second], text)
            assert difference(got, want) == "", name
            assert difference(other, want) == "", name
            assert not untouched.any(), name


def _sum_of_expanded(comm: Comm) -> list[str]:
    said = []
    for bad in (torch.ones(3, 1).expand(3, 4), torch.ones(1).expand(5)):
        with pytest.raises((ValueError, TypeError)) as error:
            comm.all_reduce(bad, codec=None)
        said.append(str(error.value))
    x = torch.ones(4)
    comm.all_reduce(x, codec=None)  # and the communicator goes on
    assert x.tolist() == [2.0] * 4
    return said


def test_views_that_overlap_themselves_are_refused() -> None:
    """An expanded view has one memory for many elements: there is no right result to write to it."""
    for said in itertools.chain(*run_local(_sum_of_expanded, 2)):
        assert "share memory" in said
        assert "tensor" in said


# ---- 6: element types that the medium does not know --------------------------------------------------------


def _move_float8(comm: Comm, name: str) -> list[list[int]]:
    dtype = getattr(torch, name)
    item = torch.empty(0, dtype=dtype).element_size()
    mine = torch.arange(24 * item, dtype=torch.uint8).add(comm.rank).view(dtype)
    gathered = torch.empty(24 * comm.size, dtype=dtype)
    comm.all_gather_into_tensor(gathered, mine, codec=None)
    swapped = torch.empty(24, dtype=dtype)
    comm.all_to_all_single(swapped, mine, codec=None)
    sent = mine.clone()
    comm.broadcast(sent, 1, codec=None)
    return [t.view(torch.uint8).tolist() for t in (gathered, swapped, sent)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "bool", "int64", "complex64"])
def test_every_element_type_moves(transport: str, name: str, rank_pool: RankPools) -> None:
    """float8 was an 'Invalid scalar type' here, bfloat16 an abort there: bytes are bytes."""
    results = _over(transport, 2, rank_pool, _move_float8, name)
    item = torch.empty(0, dtype=getattr(torch, name)).element_size()
    n = 24 * item
    rows = [[(i + rank) % 256 for i in range(n)] for rank in range(2)]
    half = n // 2
    for rank in range(2):
        gathered, swapped, sent = results[rank]
        assert gathered == rows[0] + rows[1]
        assert swapped == rows[0][rank * half : (rank + 1) * half] + rows[1][rank * half : (rank + 1) * half]
        assert sent == rows[1]


def _reduce_other_types(comm: Comm) -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.float64, torch.bool):
        x = torch.zeros(10).to(dtype)
        with pytest.raises(TypeError, match=r"float32, bfloat16 or float16.*got"):
            comm.all_reduce(x)
    x = torch.ones(10000, dtype=torch.bfloat16)
    comm.all_reduce(x)
    assert set(x.float().tolist()) == {float(comm.size)}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sums_of_other_types_are_refused_in_words(transport: str, rank_pool: RankPools) -> None:
    """Nothing is truncated silently: what is not summed is refused before anything is sent."""
    _over(transport, 2, rank_pool, _reduce_other_types)


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
        lambda c: c.all_reduce_coalesced([torch.ones(10)] * (2 + c.rank % 2)),
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
        comm.all_reduce(x, codec="int8:min_bytes=0")
        assert set(x.tolist()) == {comm.size * (comm.size + 1) / 2}
    return said


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_disagreements_raise_everywhere(transport: str, ranks: int, rank_pool: RankPools) -> None:
    """Different counts, dtypes or formats hung, or gave part sums: an error on every rank that names what
    differs.
    """
    names = list(_DISAGREEMENTS)
    results = _over(transport, ranks, rank_pool, _disagree, names)
    for i, name in enumerate(names):
        texts = {results[rank][i][1] for rank in range(ranks)}
        for rank in range(ranks):
            kind, text, seconds = results[rank][i]
            assert kind == "mismatch", f"{name}: rank {rank} raised nothing"
            assert f"disagree on {_DISAGREEMENTS[name][1]}" in text
            assert seconds < 10
        assert len(texts) == 1, texts  # the same words on every rank


# ---- 8: sums in fp16 overflow ------------------------------------------------------------------------------


def _large_halves(comm: Comm, text: str | None, op: str) -> np.ndarray:
    x = torch.full((5000,), 60000.0, dtype=torch.float16)
    comm.all_reduce(x, op, codec=text)
    return x.float().numpy()


@pytest.mark.parametrize("text", [None, *(f"{name}:min_bytes=0" for name in FORMATS)])
def test_halves_are_summed_in_binary32(text: str | None) -> None:
    """3 x 60000 is Inf in fp16; its average is not. A sum beyond fp16 is Inf, as in torch, not the largest
    half.
    """
    inputs = [np.full(5000, 60000, np.float16)] * 3
    average = run_local(_large_halves, 3, text, "avg")
    total = run_local(_large_halves, 3, text, "sum")
    for rank in range(3):
        if text is None:
            assert set(average[rank].tolist()) == {60000.0}
        else:
            want, limit = all_reduce_bound(inputs, text, "avg")
            assert (np.abs(average[rank] - want) <= limit).all()
        # Formats that have no Inf say NaN: a loss scaler sees either.
        assert not np.isfinite(total[rank]).any()
        if text is None or text.startswith(("fp32", "bf16", "fp16", "fp8_e5m2")):
            assert np.isposinf(total[rank]).all()


# ---- 9: an Inf poisoned the residual -----------------------------------------------------------------------


def _steps_with_an_inf(comm: Comm, text: str, bad_step: int) -> list[np.ndarray]:
    out = []
    for step in range(5):
        x = _normal(comm.rank, 5003, step)
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
        inputs = [_normal(rank, 5003, step) for rank in range(3)]
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
            x = torch.from_numpy(_normal(comm.rank, {"a": 5003, "b": 3000}[key], 10 * step + (key == "b")))
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


@processes
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
        x = torch.zeros(count) if comm.rank == 0 else torch.from_numpy(_normal(comm.rank, count))
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
    results = _over(transport, ranks, rank_pool, _unlike_ranks, counts)
    assert all(paths == results[0] for paths in results)
    assert set(results[0]) == {"raw", "direct"}


# ---- 15: tests of mean error -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", FORMATS)
def test_every_element_of_a_sum_is_within_its_bound(name: str, ranks: int) -> None:
    """Tests of the mean relative error at 4 % passed on broken code: a bound for each element, from the
    format.
    """
    count = 20011
    for codec in (name, f"{name}:rounding=stochastic", f"hadamard+{name}"):
        text = f"{codec}:min_bytes=0"
        for dtype, kind in itertools.product(("float32", "bfloat16"), ("sum", "avg")):
            inputs = []
            for rank in range(ranks):
                x = _normal(rank, count) * np.float32(10.0) ** np.repeat(
                    np.arange(-10, 11, dtype=np.float32), 953
                )
                inputs.append(as_array(torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype))).copy())
            results = run_local(functools.partial(_reduce_arrays, inputs, dtype), ranks, text, kind)
            want, limit = all_reduce_bound(inputs, text, kind)
            off = np.abs(to_f32(results[0]).astype(np.float64) - want)
            assert (off <= limit).all(), (text, dtype, kind, np.flatnonzero(off > limit)[:5])
            for other in results[1:]:
                assert difference(other, results[0]) == ""


def _reduce_arrays(inputs: list[np.ndarray], dtype: str, comm: Comm, text: str, op: str) -> np.ndarray:
    x = as_tensor(inputs[comm.rank], dtype)
    comm.all_reduce(x, op, codec=text)
    return as_array(x)
