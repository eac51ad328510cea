"""A controller inside all_reduce: the same decision on all ranks, and it acts in the same step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ranks import run_local

from gcomm import Communicator, _native
from gcomm._arrays import Dtype
from gcomm._control import formats
from gcomm.errors import DtypeError, InvalidArgumentError, UnsupportedError
from gcomm.gnmr import Controller

N = 20_000
USUAL = {"tau": 3.0, "tau_delta": 2.0, "window": 8, "warmup": 3, "max_ops": 2, "lock": 2}


def _train(comm, codec, coalesced, asynchronous):
    """Every rank has other values, of very different norms; rank 1 has a spike, then a NaN."""
    rng = np.random.default_rng(comm.rank)
    control = Controller(**USUAL)
    found = []
    for step in range(9):
        arrays = {}
        for key in ("a", "b"):
            x = rng.standard_normal(N).astype(np.float32) * np.float32(10.0**comm.rank)
            if comm.rank == 1 and key == "b":
                x *= np.float32(50 if step == 4 else 1)
                x[7] = np.nan if step == 6 else x[7]
            arrays[key] = x
        plain = {key: x.copy() for key, x in arrays.items()}
        levels = {key: control._level_now(key) for key in arrays}
        works = []
        if coalesced:
            works.append(
                comm.all_reduce_coalesced(
                    list(arrays.values()), codec=codec, keys=list(arrays), controller=control, async_op=True
                )
            )
            level = max(levels.values())
            levels = dict.fromkeys(arrays, level)
        else:
            for key, x in arrays.items():
                work = comm.all_reduce(x, codec=codec, key=key, controller=control, async_op=asynchronous)
                works += [work] if asynchronous else []
        for work in works:
            work.wait()
        for key, x in plain.items():
            comm.all_reduce(x, codec=formats(codec, 4)[levels[key]], key=key)
        found.append((plain, arrays, levels, control.state_dict()))
    return found, control.report()


@pytest.mark.parametrize("codec", ["nvfp4", "int4:nonfinite=propagate", "bf16"])
@pytest.mark.parametrize(("coalesced", "asynchronous"), [(False, False), (False, True), (True, True)])
def test_all_ranks_decide_alike_in_the_same_step(codec, coalesced, asynchronous):
    ranks = run_local(_train, 3, codec, coalesced, asynchronous)
    for found, report in ranks[1:]:
        assert report == ranks[0][1]
        for (_, ours, _, state), (_, theirs, _, first) in zip(found, ranks[0][0], strict=True):
            assert repr(state) == repr(first)
            assert all(ours[key].tobytes() == theirs[key].tobytes() for key in ours)
    found, report = ranks[0]
    assert (report["step"], report["clips"], report["skips"], report["recoveries"]) == (8, 1, 1, 1)
    for step, (plain, arrays, levels, _) in enumerate(found):
        level = {5: 1, 6: 1}.get(step, 0)
        assert levels["b"] == level
        assert arrays["a"].tobytes() == plain["a"].tobytes()
        if step == 4:
            # To tau times the mean before this step.
            mean = found[3][3]["units"]["b"]["mean"]
            assert np.linalg.norm(arrays["b"].astype(float)) == pytest.approx(3 * mean, rel=1e-5)
            assert np.linalg.norm(plain["b"].astype(float)) > 4 * mean
            np.testing.assert_array_equal(arrays["b"] != 0, plain["b"] != 0)
        elif step == 6:
            assert np.isnan(plain["b"]).any()
            assert not arrays["b"].any()
        else:
            assert arrays["b"].tobytes() == plain["b"].tobytes()


def test_formats_go_up_to_fp32():
    assert formats("nvfp4", 4) == ["nvfp4", "fp8_e4m3", "bf16", "fp32"]
    assert formats("gift+int4:rank=8:ef=1:min_bytes=0", 3) == [
        "gift+int4:rank=8:ef=1:min_bytes=0",
        "fp8_e4m3:min_bytes=0",
        "bf16:min_bytes=0",
    ]
    assert formats("fp32", 4) == ["fp32"]


@pytest.mark.parametrize("count", [0, 1, 7, 4096, 4103, 100_003])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_norms_and_scaling(count, dtype):
    x = (np.random.default_rng(count).standard_normal(count) * 100).astype(dtype)
    number = int(Dtype.float32 if dtype is np.float32 else Dtype.float16)
    exact = math.sqrt(math.fsum(float(value) ** 2 for value in x))
    assert _native.norm(x.ctypes.data, number, count) == pytest.approx(exact, rel=1e-12)
    # The documented order.
    squares = np.zeros(-(-count // 4096) * 4096)
    squares[:count] = x.astype(np.float64) ** 2
    total = 0.0
    for tile in squares.reshape(-1, 512, 8):
        s = [0.0] * 8
        for row in tile:
            s = [a + b for a, b in zip(s, row.tolist(), strict=True)]
        total += ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
    assert _native.norm(x.ctypes.data, number, count) == math.sqrt(total)
    scaled = x.copy()
    _native.scale(scaled.ctypes.data, number, count, 0.3)
    np.testing.assert_array_equal(scaled, (x.astype(np.float64) * 0.3).astype(np.float32).astype(dtype))


def _without_keys(comm):
    x = np.zeros(8, np.float32)
    control = Controller(**USUAL)
    with pytest.raises(InvalidArgumentError, match=r"'key'.*needed with a controller"):
        comm.all_reduce(x, controller=control)
    with pytest.raises(InvalidArgumentError, match=r"'keys'.*needed with a controller"):
        comm.all_reduce_coalesced([x], controller=control)
    with pytest.raises(InvalidArgumentError, match="different keys"):
        comm.all_reduce_coalesced([x, x.copy()], keys=["a", "a"], controller=control)
    with pytest.raises(DtypeError, match=r"gcomm\.gnmr\.Controller, got int"):
        comm.all_reduce(x, key="a", controller=1)


def test_keys_are_needed():
    run_local(_without_keys, 2)


def _in_any_order(comm):
    """Works under a controller are asked and waited for out of order; a Ctrl-C comes between sum and action."""
    control = Controller(**{**USUAL, "warmup": 0, "max_ops": 1})
    for scale in (1, 1, 1, 100):
        arrays = {key: np.full(N, scale * (1 + comm.rank), np.float32) for key in "abc"}
        works = {
            key: comm.all_reduce(x, codec=None, key=key, controller=control, async_op=True)
            for key, x in arrays.items()
        }
        with pytest.raises(UnsupportedError, match="not with a controller"):
            works["c"].get_future()
        for key in "cab"[comm.rank :] + "cab"[: comm.rank]:
            while not works[key].is_completed():
                pass
        for key in "abc":
            works[key].wait()
    return {key: x.tobytes() for key, x in arrays.items()}, control.state_dict()


def test_only_waiting_decides():
    first, *others = run_local(_in_any_order, 3)
    assert all(other == first for other in others)


def test_an_interrupted_wait_observes_once():
    (comm,) = Communicator.local(1)
    control = Controller(**USUAL)
    x = np.ones((64, 64), np.float32)[:, ::2]  # copied back after the controller has looked
    copies = []

    def copy():
        copies.append(0)
        if len(copies) == 1:
            raise KeyboardInterrupt

    work = comm.all_reduce(x, codec=None, key="k", controller=control, async_op=True)
    assert len(work._finishers) == 2
    work._finishers[1] = copy
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    work.wait()
    assert len(copies) == 2
    assert control.report()["unit_steps"] == 1
