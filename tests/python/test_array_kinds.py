"""Arrays and numbers of all kinds that calls take, and which of them are copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from arrays import Foreign, read_only
from ranks import run_local

from gcomm import Communicator, _native


@pytest.fixture(scope="module")
def alone() -> Any:
    (comm,) = Communicator.local(1)
    with comm:
        yield comm


def test_zero_dimensional_and_empty(alone: Communicator) -> None:
    for make in (torch.tensor, np.float32):
        scalar = np.array(make(3.0)) if make is np.float32 else torch.tensor(3.0)
        alone.all_reduce(scalar, codec=None)
        assert scalar.item() == 3.0
    for empty in (torch.empty(0), torch.empty(3, 0), np.empty((0, 2), np.float32)):
        alone.all_reduce(empty)


def test_requires_grad_is_reduced_as_values(alone: Communicator) -> None:
    leaf = torch.nn.Parameter(torch.full((5,), 2.0))
    alone.all_reduce(leaf, "avg", codec=None)
    assert leaf.requires_grad
    assert leaf.is_leaf
    assert torch.equal(leaf.detach(), torch.full((5,), 2.0))
    derived = leaf * 3
    out = torch.empty(5)
    alone.all_reduce(derived, out=out, codec=None)
    assert out.grad_fn is None
    assert torch.equal(out, torch.full((5,), 6.0))


def test_read_only_input_with_out(alone: Communicator) -> None:
    source = read_only(np.arange(4, dtype=np.float32))
    out = np.zeros(4, np.float32)
    alone.all_reduce(source, out=out, codec=None)
    assert np.array_equal(out, source)


def test_expanded_input_with_out(alone: Communicator) -> None:
    out = torch.empty(2, 3)
    alone.all_reduce(torch.tensor([1.0, 2.0, 3.0]).expand(2, 3), out=out, codec=None)
    assert out.tolist() == [[1.0, 2.0, 3.0]] * 2


def test_out_may_be_the_tensor_itself(alone: Communicator) -> None:
    x = torch.arange(4.0)
    alone.all_reduce(x, out=x.view(4), codec=None)
    assert x.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_numpy_and_ml_dtypes(alone: Communicator, dtype: Any) -> None:
    x = np.arange(10).astype(dtype)
    alone.all_reduce(x, codec=None)
    assert x.dtype == dtype
    assert x.astype(np.float32).tolist() == list(range(10))


def test_addresses_of_numpy_arrays() -> None:
    matrix = np.zeros((4, 6), np.float16)
    for array in (
        matrix,
        matrix[1:, ::-2],
        matrix.T,
        read_only(np.ones(3, ml_dtypes.float8_e4m3fn))[1:],
        np.zeros((0, 3)),
        np.array(1.0),
    ):
        assert _native.address(array) == array.ctypes.data


def test_any_dlpack_array(alone: Communicator) -> None:
    memory = np.arange(6, dtype=np.float32).reshape(2, 3)
    alone.all_reduce(Foreign(memory), codec=None)
    assert memory.tolist() == [[0, 1, 2], [3, 4, 5]]


VIEWS: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = [
    ("step", lambda t: t.flatten()[::2]),
    ("column", lambda t: t[:, 1]),
    ("transposed", lambda t: t.t()),
    ("block", lambda t: t[1:3, 1:3]),
    ("permuted", lambda t: t.reshape(2, 2, 6).permute(2, 0, 1)),
    ("negative", torch._neg_view),
]


@pytest.mark.parametrize("view", [row[1] for row in VIEWS], ids=[row[0] for row in VIEWS])
def test_strided_views_are_copied_in_and_out(
    alone: Communicator, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    memory = torch.arange(24.0).reshape(4, 6)
    before = alone.stats["copied_bytes"]
    part = view(memory)
    expected = part.clone()
    work = alone.all_reduce(part, codec=None, async_op=True)
    assert work is not None
    work.wait()
    assert torch.equal(part, expected)
    assert torch.equal(memory, torch.arange(24.0).reshape(4, 6))
    assert alone.stats["copied_bytes"] - before == 4 * part.numel()


def test_contiguous_memory_is_not_copied(alone: Communicator) -> None:
    before = alone.stats["copied_bytes"]
    alone.all_reduce(torch.ones(3, 1)[:, 0], codec=None)
    alone.all_reduce(torch.ones(1, 4).expand(1, 4), codec=None)
    alone.all_reduce(np.ones((4, 4), np.float32)[1:3], codec=None)
    assert alone.stats["copied_bytes"] == before


def test_interleaved_views_share_nothing(alone: Communicator) -> None:
    memory = torch.arange(24.0).reshape(4, 6)
    alone.all_reduce_coalesced([memory[:, ::2], memory[:, 1::2]], codec=None)
    alone.all_reduce_coalesced([memory.numpy()[:, :3], memory.numpy()[:, 3:]], codec=None)
    alone.all_reduce(memory[0, ::2], out=memory[0, 1::2], codec=None)
    assert memory[0].tolist() == [0, 0, 2, 2, 4, 4]
    assert torch.equal(memory[1:], torch.arange(6.0, 24.0).reshape(3, 6))


def _numpy_numbers(comm: Communicator) -> None:
    x = np.full(4, comm.rank, np.float32)
    comm.broadcast(x, np.int64(1), timeout=np.float32(20))
    assert x.tolist() == [1.0] * 4
    comm.all_reduce(x, timeout=np.int64(20))
    sizes = np.array([2, 2])
    comm.all_to_all_single(x, x.copy(), sizes, sizes)
    if comm.rank == 0:
        comm.send(x, np.int32(1))
    else:
        comm.recv(x, np.int32(0))


def test_numpy_numbers() -> None:
    run_local(_numpy_numbers, 2)


def _read_only_source(comm: Communicator, path: str) -> None:
    if comm.rank == 0:
        comm.broadcast(np.memmap(path, dtype=np.float32, mode="r"), 0)
    else:
        x = np.zeros(100_000, np.float32)
        comm.broadcast(x, 0)
        assert np.array_equal(x, np.arange(100_000))


def test_broadcast_from_memory_that_cannot_be_written(tmp_path: Any) -> None:
    path = tmp_path / "values"
    np.arange(100_000, dtype=np.float32).tofile(path)
    run_local(_read_only_source, 2, str(path))
