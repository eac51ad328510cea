"""Arrays that no call takes: refused in words that name argument and rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from arrays import Foreign, read_only

from gcomm import Communicator, errors

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
        lambda: read_only(np.ones(4, dtype=np.float32)),
        ValueError,
        "read-only; pass a writable one, or out=",
    ),
    ("read-only by DLPack", lambda: Foreign(read_only(np.ones(4, np.float32))), ValueError, "read-only"),
    (
        "strided by DLPack",
        lambda: Foreign(np.ones(8, np.float32)[::2]),
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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensor(comm: Communicator) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    for tensor in (nested, nested.transpose(1, 2)):
        with pytest.raises(ValueError, match=r"'tensor' on rank 1: .*nested"):
            comm.all_reduce(tensor)
