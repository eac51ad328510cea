"""Arguments that can't be used are refused before anything is sent, in words that name argument and rank."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray

import gcomm
from gcomm import Communicator, errors


@pytest.fixture(scope="module")
def comm() -> Any:
    """The second of two ranks. Nobody answers it: a call that got past the checks would time out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCOMM_TIMEOUT", "2")
        first, second = Communicator.local(2)
    yield second
    second.abort()
    first.close()


@pytest.fixture(scope="module")
def alone() -> Any:
    (comm,) = Communicator.local(1)
    with comm:
        yield comm


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


class _Foreign:
    """DLPack and nothing else."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


BAD_ARRAYS: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    (
        "list",
        lambda: [1.0, 2.0],
        TypeError,
        "expected a torch tensor, a numpy array or another array with DLPack, got list",
    ),
    ("none", lambda: None, TypeError, "got NoneType"),
    (
        "float64",
        lambda: torch.ones(4, dtype=torch.float64),
        TypeError,
        "float32, bfloat16 or float16, got float64",
    ),
    ("numpy float64", lambda: np.ones(4), TypeError, "float32, bfloat16 or float16, got float64"),
    ("int32", lambda: torch.ones(4, dtype=torch.int32), TypeError, "got int32; convert it first"),
    ("bool", lambda: np.ones(4, dtype=bool), TypeError, "got bool"),
    ("complex", lambda: torch.ones(4, dtype=torch.complex64), TypeError, "got complex64"),
    ("float8", lambda: torch.ones(4).to(torch.float8_e4m3fn), TypeError, "got float8_e4m3fn"),
    ("complex32", lambda: torch.zeros(4, dtype=torch.complex32), TypeError, "complex32 is not an element type"),
    ("strings", lambda: np.array(["a"]), TypeError, "is not an element type that gcomm moves"),
    ("objects", lambda: np.array([None]), TypeError, "is not an element type that gcomm moves"),
    ("other byte order", lambda: np.ones(4, dtype=">f4"), TypeError, "'>f4'"),
    ("masked", lambda: np.ma.ones(4, dtype=np.float32), TypeError, "mask would be lost"),
    (
        "meta",
        lambda: torch.ones(4, device="meta"),
        ValueError,
        "expected a CPU tensor, got one on device 'meta'",
    ),
    (
        "sparse",
        lambda: torch.eye(3).to_sparse(),
        ValueError,
        "expected a dense tensor, got layout torch.sparse_coo",
    ),
    ("expanded", lambda: torch.ones(1).expand(4), ValueError, r"share memory \(shape \(4,\), strides \(0,\)"),
    ("expanded rows", lambda: torch.ones(3).expand(2, 3), ValueError, "share memory"),
    (
        "numpy broadcast",
        lambda: np.lib.stride_tricks.as_strided(np.ones(8, np.float32), (4, 4), (4, 4)),
        ValueError,
        "share",
    ),
    (
        "read-only",
        lambda: _read_only(np.ones(4, dtype=np.float32)),
        ValueError,
        "read-only; pass a writable one, or out=",
    ),
    ("read-only by DLPack", lambda: _Foreign(_read_only(np.ones(4, np.float32))), ValueError, "read-only"),
    (
        "strided by DLPack",
        lambda: _Foreign(np.ones(8, np.float32)[::2]),
        ValueError,
        "expected contiguous memory",
    ),
    ("bytes", lambda: b"1234", ValueError, "read-only"),
]


@pytest.mark.parametrize(
    ("make", "kind", "text"), [row[1:] for row in BAD_ARRAYS], ids=[row[0] for row in BAD_ARRAYS]
)
def test_bad_array(comm: Communicator, make: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        comm.all_reduce(make())
    assert str(caught.value).startswith("all_reduce: argument 'tensor' on rank 1: ")
    assert isinstance(caught.value, errors.GcommError)
    assert caught.value.rank == 1


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_fake_tensor(comm: Communicator) -> None:
    from torch._subclasses import fake_tensor

    with vars(fake_tensor)["FakeTensorMode"]():
        fake = torch.ones(4)
    with pytest.raises(ValueError, match="FakeTensor has no memory of its own"):
        comm.all_reduce(fake)


X = torch.arange(6.0)
PREMULTIPLIED = vars(dist)["_make_nccl_premul_sum"](2.0)

BAD_CALLS: list[tuple[str, Callable[[Any], Any], type[Exception], str]] = [
    (
        "op max",
        lambda c: c.all_reduce(X, "max"),
        ValueError,
        "'op' on rank 1: expected 'sum', 'avg', .* got 'max'",
    ),
    ("op min", lambda c: c.all_reduce(X, dist.ReduceOp.MIN), ValueError, "'op' on rank 1: expected .*MIN"),
    ("op product", lambda c: c.all_reduce(X, dist.ReduceOp.PRODUCT), ValueError, "'op'"),
    ("op none", lambda c: c.all_reduce(X, None), ValueError, "'op'"),
    ("op premul", lambda c: c.all_reduce(X, PREMULTIPLIED), ValueError, "'op'"),
    (
        "codec type",
        lambda c: c.all_reduce(X, codec=8),
        TypeError,
        "'codec' on rank 1: expected a str, a gcomm.Codec or None",
    ),
    ("codec name", lambda c: c.all_reduce(X, codec="fp7"), errors.CodecError, "'codec' on rank 1: .*fp7"),
    ("codec option", lambda c: c.all_reduce(X, codec="int8:colour=red"), errors.CodecError, "colour"),
    ("codec value", lambda c: c.all_reduce(X, codec="int8:rounding=up"), errors.CodecError, "rounding"),
    ("key type", lambda c: c.all_reduce(X, key=3), TypeError, "'key' on rank 1: expected a str"),
    ("key nul", lambda c: c.all_reduce(X, key="a\0b"), ValueError, "'key' on rank 1: .*NUL"),
    ("timeout 0", lambda c: c.all_reduce(X, timeout=0), ValueError, "'timeout' on rank 1: expected a positive"),
    ("timeout inf", lambda c: c.all_reduce(X, timeout=float("inf")), ValueError, "'timeout'"),
    ("timeout nan", lambda c: c.all_reduce(X, timeout=float("nan")), ValueError, "'timeout'"),
    ("timeout delta", lambda c: c.all_reduce(X, timeout=datetime.timedelta(-1)), ValueError, "'timeout'"),
    ("timeout type", lambda c: c.all_reduce(X, timeout="1"), TypeError, "'timeout'"),
    (
        "controller",
        lambda c: c.all_reduce(X, controller=object()),
        NotImplementedError,
        "controller= is not in this version",
    ),
    (
        "out shape",
        lambda c: c.all_reduce(X, out=torch.empty(2, 3)),
        ValueError,
        r"'out' on rank 1: expected float32 of shape \(6,\)",
    ),
    ("out dtype", lambda c: c.all_reduce(X, out=X.bfloat16()), ValueError, "'out' on rank 1: .* got bfloat16"),
    (
        "out overlap",
        lambda c: c.all_reduce(X[:4], out=X[2:]),
        ValueError,
        "'out' on rank 1: it shares memory with a part",
    ),
    (
        "out strided overlap",
        lambda c: c.all_reduce(X[::2], out=X[1::2]),
        ValueError,
        "'out' on rank 1: it shares memory",
    ),
    (
        "out read-only",
        lambda c: c.all_reduce(X.numpy(), out=_read_only(np.zeros(6, np.float32))),
        ValueError,
        "'out' .* read-only",
    ),
    (
        "out expanded",
        lambda c: c.all_reduce(X, out=torch.zeros(1).expand(6)),
        ValueError,
        "'out' .* share memory",
    ),
    (
        "coalesced none",
        lambda c: c.all_reduce_coalesced([]),
        TypeError,
        "'tensors' on rank 1: expected a list of one or more",
    ),
    ("coalesced tensor", lambda c: c.all_reduce_coalesced(X), TypeError, "'tensors'"),
    (
        "coalesced mixed",
        lambda c: c.all_reduce_coalesced([X, X.half()]),
        TypeError,
        r"'tensors\[1\]' .* expected float32",
    ),
    (
        "coalesced twice",
        lambda c: c.all_reduce_coalesced([X, X[2:]]),
        ValueError,
        r"'tensors\[1\]' .* shares memory with tensors\[0\]",
    ),
    (
        "coalesced keys",
        lambda c: c.all_reduce_coalesced([X], keys=["a", "b"]),
        ValueError,
        "'keys' on rank 1: expected 1 keys",
    ),
    (
        "scatter count",
        lambda c: c.reduce_scatter_tensor(torch.empty(2), X),
        ValueError,
        "'input' .* expected 2 times output's 2",
    ),
    (
        "scatter dtype",
        lambda c: c.reduce_scatter_tensor(torch.empty(3).half(), X),
        TypeError,
        "'output' .* expected float32",
    ),
    (
        "scatter ints",
        lambda c: c.reduce_scatter_tensor(torch.ones(3).int(), X.int()),
        TypeError,
        "'input' .* got int32",
    ),
    (
        "gather count",
        lambda c: c.all_gather_into_tensor(torch.empty(11), X),
        ValueError,
        "'output_tensor' .* expected 2 times",
    ),
    (
        "gather dtype",
        lambda c: c.all_gather_into_tensor(torch.empty(12).int(), X),
        TypeError,
        "'output_tensor' .* expected float32",
    ),
    (
        "gather codec",
        lambda c: c.all_gather_into_tensor(torch.ones(12).int(), X.int(), codec="int8"),
        TypeError,
        "codecs encode .* got int32",
    ),
    (
        "split indivisible",
        lambda c: c.all_to_all_single(torch.ones(5), torch.ones(5)),
        ValueError,
        "'input_split_sizes' .* divided by 2",
    ),
    (
        "split length",
        lambda c: c.all_to_all_single(X.clone(), X, None, [6]),
        ValueError,
        "'input_split_sizes' .* expected 2 sizes",
    ),
    (
        "split sum",
        lambda c: c.all_to_all_single(X.clone(), X, [3, 4]),
        ValueError,
        "'output_split_sizes' .* add up to output's first axis of 6",
    ),
    (
        "split negative",
        lambda c: c.all_to_all_single(X.clone(), X, [7, -1]),
        ValueError,
        "'output_split_sizes'",
    ),
    (
        "split own",
        lambda c: c.all_to_all_single(X.clone(), X, [4, 2], [3, 3]),
        ValueError,
        "sends itself 3 elements but expects 2",
    ),
    (
        "broadcast src",
        lambda c: c.broadcast(X, 2),
        ValueError,
        "'src' on rank 1: expected a rank from 0 to 1, got 2",
    ),
    ("broadcast type", lambda c: c.broadcast(X, "0"), TypeError, "'src' on rank 1: expected a rank"),
    (
        "broadcast read-only",
        lambda c: c.broadcast(_read_only(np.ones(2)), 0),
        ValueError,
        "'tensor' .* read-only",
    ),
    (
        "send self",
        lambda c: c.send(X, 1),
        ValueError,
        "'dst' on rank 1: a rank can't exchange messages with itself",
    ),
    ("recv self", lambda c: c.recv(X, 1), ValueError, "'src' on rank 1"),
    (
        "recv negative",
        lambda c: c.recv(X, -1),
        ValueError,
        "'src' on rank 1: expected a rank from 0 to 1, got -1",
    ),
    ("recv read-only", lambda c: c.recv(_read_only(np.ones(2)), 0), ValueError, "'tensor' .* read-only"),
]


@pytest.mark.parametrize(
    ("call", "kind", "text"), [row[1:] for row in BAD_CALLS], ids=[row[0] for row in BAD_CALLS]
)
def test_bad_call(
    comm: Communicator, call: Callable[[Communicator], Any], kind: type[Exception], text: str
) -> None:
    before = X.clone()
    with pytest.raises(kind, match=text) as caught:
        call(comm)
    assert isinstance(caught.value, errors.GcommError)
    assert torch.equal(X, before)


def test_nothing_was_sent(comm: Communicator) -> None:
    assert comm.stats["wire_bytes"] == 0
    assert comm.stats["calls"] == 0


BAD_GROUPS: list[tuple[str, Any, type[Exception], str]] = [
    ("text", "world", ValueError, "no torch process group and no gcomm.Communicator: 'world'"),
    ("number", 3, ValueError, "no torch process group"),
    ("default", None, ValueError, "no default group; call init_process_group first"),
]


@pytest.mark.parametrize(
    ("group", "kind", "text"), [row[1:] for row in BAD_GROUPS], ids=[row[0] for row in BAD_GROUPS]
)
def test_bad_group(group: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        gcomm.all_reduce(torch.ones(2), "sum", group)


def test_not_in_this_version() -> None:
    calls: list[Callable[[], Any]] = [
        lambda: Communicator.from_mpi(None),
        lambda: Communicator.from_nccl(b"", 0, 1),
        lambda: Communicator.from_torch(transport="nccl"),
        lambda: Communicator.from_torch(two_level=True),
        lambda: Communicator.from_torch(node_of=[0, 0]),
    ]
    for call in calls:
        with pytest.raises(errors.UnsupportedError, match="not in this version"):
            call()
    with pytest.raises(ValueError, match=r"transport: expected one of .* got 'mpi'"):
        Communicator.from_torch(transport="mpi")
    for n, kind in ((0, ValueError), (-1, ValueError), ("2", TypeError), (True, TypeError)):
        with pytest.raises(kind, match="local: argument 'n'"):
            Communicator.local(n)  # type: ignore[arg-type]


# ---- what is accepted ---------------------------------------------------------------------------------------


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
    source = _read_only(np.arange(4, dtype=np.float32))
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


def test_any_dlpack_array(alone: Communicator) -> None:
    memory = np.arange(6, dtype=np.float32).reshape(2, 3)
    alone.all_reduce(_Foreign(memory), codec=None)
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
