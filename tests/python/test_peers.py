"""What broke in other systems of this kind, a test for each thing that the core could get wrong in the same
way.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from native_codec import NativeCodec, difference
from ranks import RankPools, run_local
from reference import replay
from reference.bound import all_reduce_bound
from reference.encoder import to_f32
from reference.spec import BLOCK, FORMATS, Q_MAX
from replay_cases import TRANSPORTS, as_array, as_tensor, normal, run_over

import gcomm

Comm = gcomm.Communicator


# ---- 1: the owner of a shard kept its unquantised value ----------------------------------------------------


def _sum_of_random(comm: Comm, text: str, count: int) -> np.ndarray:
    x = torch.from_numpy(normal(comm.rank, count))
    comm.all_reduce(x, codec=text)
    return x.numpy()


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", FORMATS)
def test_owner_uses_the_decoded_sum_like_everybody(name: str, ranks: int) -> None:
    """The owner of a shard kept its own exact sum while others decoded the quantised one: replicas drift
    apart.
    """
    results = run_local(_sum_of_random, ranks, f"{name}:min_bytes=0", 40000)
    for other in results[1:]:
        assert difference(other, results[0]) == ""
    # Every element, each owner's too, is one that the format can hold.
    codec = NativeCodec(name)
    for shard in replay.shards(40000, ranks):
        inputs = [normal(rank, 40000) for rank in range(ranks)]
        exact = replay.raw_sum(inputs, "sum")[shard]
        if name != "fp32":
            assert difference(results[0][shard], exact) != "", "the shard was not quantised"
    assert len(codec.encode(results[0])) == codec.wire_bytes(40000)


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
        x = torch.from_numpy(normal(comm.rank, count))
        comm.all_reduce(x, codec=text)
        out.append(x.numpy())
    return out


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["fp8_e4m3", "int4", "nvfp4"])
def test_odd_counts_on_three_ranks(transport: str, name: str, rank_pool: RankPools) -> None:
    """Three ranks, and counts that nothing divides: 0, 1, 2, N - 1, N + 1, 7, a prime, one past a block."""
    counts = [0, 1, 2, 2, 4, 7, 1009, BLOCK[name] + 1, 4097]
    text = f"{name}:min_bytes=0"
    results = run_over(transport, 3, rank_pool, _sums_of_counts, text, counts)
    for i, count in enumerate(counts):
        want = replay.all_reduce([normal(rank, count) for rank in range(3)], text)
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
        whole = torch.from_numpy(normal(comm.rank, 2000))
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
        results = run_over(transport, 2, rank_pool, _sum_of_views, text)
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
    bits = torch.arange(24 * item, dtype=torch.uint8).add(comm.rank)
    mine = (bits % 2 if dtype == torch.bool else bits).view(dtype)
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
    results = run_over(transport, 2, rank_pool, _move_float8, name)
    item = torch.empty(0, dtype=getattr(torch, name)).element_size()
    n = 24 * item
    values = 2 if name == "bool" else 256
    rows = [[(i + rank) % values for i in range(n)] for rank in range(2)]
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
    run_over(transport, 2, rank_pool, _reduce_other_types)


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
                sizes = np.float32(10.0) ** np.repeat(np.arange(-10, 11, dtype=np.float32), 953)
                x = torch.from_numpy((normal(rank, count) * sizes[:count]).astype(np.float32))
                inputs.append(as_array(x.to(getattr(torch, dtype))).copy())
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
