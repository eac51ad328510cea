"""Arguments that can't be used are refused before anything is sent, in words that name argument and rank."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from arrays import read_only

import gcomm
from gcomm import Communicator, errors

X = torch.arange(6.0)
SQUARE = torch.zeros(4, 4)
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
    ("op number", lambda c: c.all_reduce(X, 0), ValueError, "'op' on rank 1: .*got 0"),
    ("op array", lambda c: c.all_reduce(X, np.ones(2)), ValueError, "'op' on rank 1: .*got array"),
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
    ("key surrogate", lambda c: c.all_reduce(X, key="\udcff"), ValueError, "'key' on rank 1: .*surrogate"),
    ("codec nul", lambda c: c.all_reduce(X, codec="int8\0junk"), errors.CodecError, "'codec' on rank 1: .*NUL"),
    (
        "codec surrogate",
        lambda c: c.all_reduce(X, codec="\udcff"),
        errors.CodecError,
        "'codec' on rank 1: .*surrogate",
    ),
    ("abort type", lambda c: c.abort(5), TypeError, "'why' on rank 1: expected a str"),
    ("probe peer", lambda c: c.link_probe("0", True, "ping_pong", 8, 1), TypeError, "'peer' on rank 1"),
    ("probe bytes", lambda c: c.link_probe(0, True, "ping_pong", -8, 1), ValueError, "'nbytes' on rank 1"),
    ("probe pattern", lambda c: c.link_probe(0, True, ["x"], 8, 1), ValueError, "'pattern' on rank 1"),
    ("timeout 0", lambda c: c.all_reduce(X, timeout=0), ValueError, "'timeout' on rank 1: expected a positive"),
    ("timeout inf", lambda c: c.all_reduce(X, timeout=float("inf")), ValueError, "'timeout'"),
    ("timeout nan", lambda c: c.all_reduce(X, timeout=float("nan")), ValueError, "'timeout'"),
    ("timeout delta", lambda c: c.all_reduce(X, timeout=datetime.timedelta(-1)), ValueError, "'timeout'"),
    ("timeout type", lambda c: c.all_reduce(X, timeout="1"), TypeError, "'timeout'"),
    (
        "controller",
        lambda c: c.all_reduce(X, key="x", controller=object()),
        TypeError,
        "'controller' on rank 1: expected a gcomm.gnmr.Controller",
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
        lambda c: c.all_reduce(X[:4:2], out=X[2::2]),
        ValueError,
        "'out' on rank 1: it shares memory",
    ),
    (
        "out read-only",
        lambda c: c.all_reduce(X.numpy(), out=read_only(np.zeros(6, np.float32))),
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
        "coalesced keys text",
        lambda c: c.all_reduce_coalesced([X, X[:1]], keys="ab"),
        TypeError,
        "'keys' on rank 1",
    ),
    (
        "coalesced strided overlap",
        lambda c: c.all_reduce_coalesced([SQUARE[:, :2], SQUARE[:, 1:3]]),
        ValueError,
        r"'tensors\[1\]' on rank 1: it shares memory with tensors\[0\]",
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
        r"'output_split_sizes\[0\]' on rank 1: expected at most 6, got 7",
    ),
    (
        "split fraction",
        lambda c: c.all_to_all_single(X.clone(), X, [4.7, 1.3]),
        TypeError,
        r"'output_split_sizes\[0\]' on rank 1: expected an int, got float",
    ),
    (
        "split none",
        lambda c: c.all_to_all_single(X.clone(), X, None, [None, 6]),
        TypeError,
        r"'input_split_sizes\[0\]' on rank 1",
    ),
    (
        "split number",
        lambda c: c.all_to_all_single(X.clone(), X, 3, 3),
        TypeError,
        "'input_split_sizes' on rank 1: expected a list of 2 sizes",
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
        lambda c: c.broadcast(read_only(np.ones(2)), 0),
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
    ("recv read-only", lambda c: c.recv(read_only(np.ones(2)), 0), ValueError, "'tensor' .* read-only"),
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
    ("text", "world", ValueError, "no torch process group, mpi4py communicator or gcomm.Communicator: 'world'"),
    ("number", 3, ValueError, "no torch process group"),
    ("default", None, ValueError, "no default group; call init_process_group first"),
]


@pytest.mark.parametrize(
    ("group", "kind", "text"), [row[1:] for row in BAD_GROUPS], ids=[row[0] for row in BAD_GROUPS]
)
def test_bad_group(group: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        gcomm.all_reduce(torch.ones(2), "sum", group)


def test_codec_of_too_many_elements() -> None:
    with pytest.raises(ValueError, match="'count': expected at most"):
        gcomm.codec("int8").wire_bytes(2**70)
    for text in ("int8\0junk", "\udcff"):
        with pytest.raises(errors.CodecError):
            gcomm.codec(text)


def test_not_in_this_version() -> None:
    calls: list[Callable[[], Any]] = [
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
