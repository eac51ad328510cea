"""gcomm.jax on two processes: values, order, derivatives, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from programs import run_script
from ranks import Ranks

import gcomm
from gcomm.cli import main

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'gcomm[jax]'")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2, backend=None, env={"JAX_PLATFORMS": "cpu"}) as two:
        yield two


_comm: list[gcomm.Communicator] = []


def communicator() -> gcomm.Communicator:
    """One for all tests that leave it open."""
    if not _comm:
        _comm.append(gcomm.Communicator.from_env())
    return _comm[0]


def gradient(rank: int, count: int = 10_007, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(rank).standard_normal(count, np.float32).astype(dtype)


# ---- values --------------------------------------------------------------------------------------------------


def _same_bits(rank: int, size: int, codec: str | None, dtype: str) -> bytes:
    import jax.numpy as jnp

    import gcomm.jax

    comm = communicator()
    x = jnp.asarray(gradient(rank)).astype(dtype)
    by_verb = np.array(x)
    comm.all_reduce(by_verb, "avg", codec=codec)
    compiled = jax.jit(lambda v: gcomm.jax.all_reduce(v, "avg", comm=comm, codec=codec))
    for result in (compiled(x), compiled(x), gcomm.jax.all_reduce(x, "avg", comm=comm, codec=codec)):
        assert result.dtype == x.dtype
        assert np.asarray(result).tobytes() == by_verb.tobytes()
    return by_verb.tobytes()


@pytest.mark.parametrize(
    ("codec", "dtype"),
    [("fp8_e4m3", "float32"), ("nvfp4", "bfloat16"), (None, "float16"), ("hadamard+int4", "float32")],
)
def test_the_bits_of_the_verb(ranks: Ranks, codec: str | None, dtype: str) -> None:
    first, second = ranks.run(_same_bits, codec, dtype)
    assert first == second


def _against_float64(rank: int, size: int) -> None:
    import gcomm.jax

    comm = communicator()
    inputs = [gradient(r) for r in range(size)]
    exact = np.sum([x.astype(np.float64) for x in inputs], axis=0)
    result = np.asarray(gcomm.jax.all_reduce(inputs[rank], comm=comm, codec=None))
    assert np.array_equal(result, (inputs[0] + inputs[1]).astype(np.float32))
    coarse = np.asarray(gcomm.jax.all_reduce(inputs[rank], comm=comm, codec="fp8_e4m3"), np.float64)
    # Half a step of the 3-bit mantissa for each value, and again for the sum.
    bound = 2.0**-4 * (sum(np.abs(x.astype(np.float64)) for x in inputs) + np.abs(exact)) * 1.1 + 2e-2
    assert np.all(np.abs(coarse - exact) <= bound)


def test_values(ranks: Ranks) -> None:
    ranks.run(_against_float64)


def _parts(rank: int, size: int) -> None:
    import jax.numpy as jnp

    import gcomm.jax

    comm = communicator()
    x = jnp.arange(12.0).reshape(4, 3) + 100 * rank
    gathered = gcomm.jax.all_gather(x, comm=comm)
    assert np.array_equal(gathered, np.concatenate([np.arange(12.0).reshape(4, 3) + 100 * r for r in range(2)]))
    part = gcomm.jax.reduce_scatter(x, "avg", comm=comm, codec=None)
    assert np.array_equal(part, (np.arange(12.0).reshape(4, 3) + 50)[2 * rank : 2 * rank + 2])


def test_all_gather_and_reduce_scatter(ranks: Ranks) -> None:
    ranks.run(_parts)


def _states(rank: int, size: int) -> bool:
    import gcomm.jax

    comm = communicator()
    matrix = gradient(rank, 96 * 128).reshape(96, 128)
    equal = True
    for spec, kind in (("int4:ef=1", str), ("gift+nvfp4:min_bytes=0", str), ("int4:ef=1", gcomm.codec)):
        codec, reference = kind(spec), gcomm.codec(spec)
        step = jax.jit(lambda v, c=codec: gcomm.jax.all_reduce(v, comm=comm, codec=c, key="w"))
        for _ in range(3):
            expected = matrix.copy()
            comm.all_reduce(expected, codec=reference, key="w")
            equal = equal and np.asarray(step(matrix)).tobytes() == expected.tobytes()
    return equal


def test_codecs_keep_their_state_from_call_to_call(ranks: Ranks) -> None:
    assert ranks.run(_states) == [True, True]


# ---- order ---------------------------------------------------------------------------------------------------


def _order(rank: int, size: int, rounds: int) -> int:
    import jax.numpy as jnp

    import gcomm.jax

    comm = communicator()
    calls = 8

    @jax.jit
    def independent(arrays: Any) -> Any:
        # Each rank has much to compute before every other call, and not the same ones as the other rank.
        results = []
        for i, array in enumerate(arrays):
            work = array
            if i % 2 == rank:
                for _ in range(4):
                    work = jnp.sin(work @ work)
            mine = jnp.full(3000, i + 1.0) + 0 * work[0, 0]
            results.append(gcomm.jax.all_reduce(mine, comm=comm, codec=None))
        return results[::-1]

    arrays = [jnp.full((192, 192), 0.01)] * calls
    expected = [2.0 * (i + 1) for i in range(calls)][::-1]
    return sum([float(each[0]) for each in independent(arrays)] != expected for _ in range(rounds))


def test_calls_that_nothing_connects_keep_their_order(ranks: Ranks) -> None:
    """Without the token, all rounds fail here."""
    assert ranks.run(_order, 40) == [0, 0]


def _order_of_programs(rank: int, size: int) -> None:
    import jax.numpy as jnp

    import gcomm.jax

    comm = communicator()
    programs = []
    for i in range(4):

        def program(array: Any, i: int = i) -> Any:
            if i % 2 == rank:
                array = jax.lax.fori_loop(0, 6, lambda _, a: jnp.sin(a @ a), array)
            return gcomm.jax.all_reduce(jnp.full(3000, i + 1.0) + 0 * array[0, 0], comm=comm, codec=None)

        programs.append(jax.jit(program))
    array = jnp.full((192, 192), 0.01)
    for _ in range(10):
        results = [program(array) for program in programs]  # nobody waits in between
        assert [float(each[0]) for each in results] == [2.0, 4.0, 6.0, 8.0]


def test_programs_keep_their_order(ranks: Ranks) -> None:
    ranks.run(_order_of_programs)


def _control_flow(rank: int, size: int) -> None:
    import jax.numpy as jnp

    import gcomm.jax

    comm = communicator()

    @jax.jit
    def scanned(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            twice = jax.lax.cond(
                i % 2 == 0,
                lambda v: gcomm.jax.all_reduce(v, "avg", comm=comm, codec=None),
                lambda v: v + 1,
                carry,
            )
            return twice, gcomm.jax.all_reduce(i * jnp.ones(3), comm=comm, codec=None)[0]

        return jax.lax.scan(body, x, jnp.arange(4.0))

    last, sums = scanned(jnp.full(5, float(rank)))
    assert last.tolist() == [2.5] * 5
    assert sums.tolist() == [0, 2, 4, 6]


def test_loops_and_branches(ranks: Ranks) -> None:
    ranks.run(_control_flow)


# ---- derivatives and batches ---------------------------------------------------------------------------------


def _derivatives(rank: int, size: int) -> None:
    import jax.numpy as jnp

    import gcomm.jax

    comm = communicator()
    weights = jnp.arange(1.0, 5.0) + rank
    total = np.arange(1.0, 5.0) * 2 + 1  # of the weights of both ranks
    x = jnp.asarray([1.0, -2.0, 3.0, 0.5]) * (rank + 1)
    both = jnp.concatenate([weights, -weights])

    def total_of(op: str) -> Any:
        # The loss of all ranks is the sum of theirs: its gradient has all their weights.
        return lambda v: weights @ gcomm.jax.all_reduce(v, op, comm=comm, codec=None)

    def tangent(v: Any) -> Any:
        return jax.jvp(lambda u: gcomm.jax.all_reduce(u, comm=comm, codec=None), (v,), (v,))[1]

    for wrap in (lambda f: f, jax.jit):
        assert np.array_equal(wrap(jax.grad(total_of("sum")))(x), total)
        assert np.array_equal(wrap(jax.grad(total_of("avg")))(x), total / 2)
        gather = wrap(jax.grad(lambda v: both @ gcomm.jax.all_gather(v, comm=comm)))
        assert np.array_equal(gather(x), total if rank == 0 else -total)
        scatter = wrap(
            jax.grad(lambda v: weights[:2] @ gcomm.jax.reduce_scatter(v, "avg", comm=comm, codec=None))
        )
        assert np.array_equal(scatter(x), np.array([1.0, 2.0, 2.0, 3.0]) / 2)
        assert np.array_equal(wrap(tangent)(x), np.array([1.0, -2.0, 3.0, 0.5]) * 3)
    # A gradient that travels in a codec is near the exact one.
    coarse = jax.grad(lambda v: weights @ gcomm.jax.all_reduce(v, comm=comm, codec="int8:min_bytes=0"))(x)
    assert np.max(np.abs(coarse - total)) < 0.1


def test_derivatives(ranks: Ranks) -> None:
    ranks.run(_derivatives)


def _batches(rank: int, size: int) -> None:
    import jax.numpy as jnp

    import gcomm.jax

    comm = communicator()
    x = jnp.arange(24.0).reshape(2, 3, 4) * (rank + 1)
    whole = np.arange(24.0).reshape(2, 3, 4)
    before = comm.stats["calls"]
    for axis in range(3):
        summed = jax.vmap(
            lambda v: gcomm.jax.all_reduce(v, comm=comm, codec=None), in_axes=axis, out_axes=axis
        )(x)
        assert np.array_equal(summed, whole * 3)
    assert comm.stats["calls"] - before == 3  # one for each batch
    gathered = jax.vmap(lambda v: gcomm.jax.all_gather(v, comm=comm), in_axes=1, out_axes=1)(x)
    assert np.array_equal(gathered, np.concatenate([whole, whole * 2]))
    part = jax.vmap(lambda v: gcomm.jax.reduce_scatter(v, comm=comm, codec=None), in_axes=2, out_axes=2)(x)
    assert np.array_equal(part, whole[rank : rank + 1] * 3)
    with pytest.raises(gcomm.errors.UnsupportedError, match="vmap over a call with key='w'"):
        jax.vmap(lambda v: gcomm.jax.all_reduce(v, comm=comm, key="w"))(x)


def test_vmap_is_one_call(ranks: Ranks) -> None:
    ranks.run(_batches)


# ---- what goes wrong -----------------------------------------------------------------------------------------


def _mismatch(rank: int, size: int) -> list[str]:
    import jax.numpy as jnp

    import gcomm.jax

    comm = gcomm.Communicator.from_env()

    @jax.jit
    def slow(x: Any) -> Any:
        # Long enough that JAX does not wait for it.
        y = jax.lax.fori_loop(0, 10, lambda _, a: jnp.sin(a @ a), jnp.full((200, 200), 0.01))
        return gcomm.jax.all_reduce(x + 0 * y[0, 0], comm=comm, codec=None)

    texts = []
    for shape in (5 + rank, 5):
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            slow(jnp.ones(shape)).block_until_ready()
        texts.append(str(caught.value))
    gcomm.jax.recover(comm)
    assert slow(jnp.ones(5)).tolist() == [2.0] * 5
    comm.close()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"FAILED_PRECONDITION.*the communicator is closed"):
        slow(jnp.ones(5)).block_until_ready()
    return texts


def test_mismatch_and_recovery(ranks: Ranks) -> None:
    first, second = ranks.run(_mismatch)
    assert first == second
    for text in first:
        assert text.startswith("INVALID_ARGUMENT: gcomm")
        assert "rank 0: all_reduce(sum, float32[5], codec fp32)" in text
        assert "rank 1: all_reduce(sum, float32[6], codec fp32)" in text


def _late(rank: int, size: int) -> str:
    import jax.numpy as jnp

    import gcomm.jax

    comm = gcomm.Communicator.from_env()
    if rank == 1:
        assert communicator().barrier() is None
        return ""
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        gcomm.jax.all_reduce(jnp.ones(5), comm=comm, timeout=0.5).block_until_ready()
    communicator().barrier()
    return str(caught.value)


def test_timeout(ranks: Ranks) -> None:
    text, _ = ranks.run(_late)
    assert text.startswith("DEADLINE_EXCEEDED: gcomm")
    assert "rank 1" in text


LOST = """
import os, sys
import jax, jax.numpy as jnp
import gcomm, gcomm.jax
comm = gcomm.Communicator.from_env()
reduce = jax.jit(lambda x: gcomm.jax.all_reduce(x, comm=comm))
reduce(jnp.ones(5000)).block_until_ready()
if comm.rank == 1:
    os._exit(7)
try:
    reduce(jnp.ones(5000)).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    print(error)
"""


def test_peer_lost() -> None:
    survivor, gone = run_script(LOST, 2, env={"JAX_PLATFORMS": "cpu"}, preload=False)
    assert gone.returncode == 7
    assert survivor.returncode == 0, survivor.stderr
    assert survivor.stdout.startswith("UNAVAILABLE: gcomm")
    assert "rank 1" in survivor.stdout
    assert "Traceback" not in survivor.stderr


def test_bad_arguments(comm: gcomm.Communicator) -> None:
    import jax.numpy as jnp

    import gcomm.jax

    x = jnp.ones(3)
    with pytest.raises(TypeError, match=r"gcomm\.jax\.all_reduce: argument 'x' on rank 1: .* got int32"):
        jax.jit(lambda v: gcomm.jax.all_reduce(v, comm=comm))(jnp.ones(3, jnp.int32))
    with pytest.raises(TypeError, match="got float64"):
        gcomm.jax.all_reduce(np.ones(3), comm=comm)
    with pytest.raises(ValueError, match="argument 'op' on rank 1: expected 'sum', 'avg'"):
        gcomm.jax.all_reduce(x, "max", comm=comm)
    with pytest.raises(gcomm.errors.CodecError, match="unknown format 'int99'"):
        gcomm.jax.all_reduce(x, comm=comm, codec="int99")
    with pytest.raises(TypeError, match=r"argument 'comm': expected a gcomm\.Communicator, got None"):
        gcomm.jax.all_reduce(x, comm=None)
    with pytest.raises(ValueError, match="expected a first axis that 2 ranks can divide"):
        gcomm.jax.reduce_scatter(x, comm=comm)
    with pytest.raises(ValueError, match="got a scalar"):
        gcomm.jax.all_gather(jnp.float32(1), comm=comm)
    with pytest.raises(ValueError, match="timeout"):
        gcomm.jax.all_reduce(x, comm=comm, timeout=-1)


def test_verbs_do_not_write_to_jax_arrays(comm: gcomm.Communicator) -> None:
    import jax.numpy as jnp

    x = jnp.arange(4.0)
    with pytest.raises(ValueError, match=r"a jax array never changes; use gcomm\.jax.*or out="):
        comm.all_reduce(x)
    assert x.tolist() == [0, 1, 2, 3]
    (alone,) = gcomm.Communicator.local(1)
    with alone:
        for dtype in (jnp.float32, jnp.bfloat16):
            source = jnp.arange(4).astype(dtype)
            out = np.zeros(4, source.dtype)
            alone.all_reduce(source, out=out, codec=None)
            assert out.tolist() == [0, 1, 2, 3]


# ---- beside it -----------------------------------------------------------------------------------------------


def test_doctor() -> None:
    result = CliRunner().invoke(main, ["doctor", "--json", "-"])
    row = json.loads(result.stdout)["jax"]
    assert row["available"]
    assert row["jax"] == jax.__version__


def test_example() -> None:
    program = f"import runpy; runpy.run_path({str(EXAMPLES / 'jax_data_parallel.py')!r}, run_name='__main__')"
    first, second = run_script(program, 2, env={"JAX_PLATFORMS": "cpu"}, preload=False)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    losses = [float(each) for each in re.findall(r"loss (\S+)", first.stdout)]
    assert losses[-1] < 0.1 * losses[0]
