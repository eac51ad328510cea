"""A communicator's state: taken over whole or not at all, and no state from calls that did not take place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import run_local

import gcomm
from gcomm import Communicator, errors

A = "int4:ef=1:min_bytes=0"
B = "int8:ef=1:min_bytes=0"


def _reduce(comm: Communicator, codec: Any, key: str, count: int = 500) -> np.ndarray[Any, Any]:
    x = np.full(count, 1 / 3, np.float32)
    comm.all_reduce(x, codec=codec, key=key)
    return x


def _mismatch_then_not(comm: Communicator, as_object: bool) -> None:
    codec: Any = gcomm.codec(A) if as_object else A
    with pytest.raises(errors.MismatchError):
        _reduce(comm, codec, "w", 100_000 if comm.rank == 0 else 50_000)
    result = _reduce(comm, codec, "w", 100_000)
    fresh = _reduce(comm, gcomm.codec(A), "w", 100_000)
    assert np.array_equal(result, fresh)


@pytest.mark.parametrize("as_object", [False, True])
def test_a_mismatch_leaves_no_state(as_object: bool) -> None:
    run_local(_mismatch_then_not, 2, as_object)


def test_a_refused_encode_leaves_no_state() -> None:
    codec = gcomm.codec(f"{A}:nonfinite=raise")
    with pytest.raises(errors.NonFiniteError):
        codec.encode(np.full(10, np.nan, np.float32), key="w")
    codec.encode(np.ones(20, np.float32), key="w")


def test_a_bad_state_changes_nothing() -> None:
    (comm,) = Communicator.local(1)
    _reduce(comm, A, "a")
    saved = comm.state_dict()
    _reduce(comm, A, "a")
    _reduce(comm, B, "b")
    before = comm.state_dict()
    text = gcomm.codec(A).spec
    good = saved["codecs"][text]
    bad_states: list[Any] = [
        {**saved, "codecs": {text: good, gcomm.codec(B).spec: b"junk"}},
        {**saved, "codecs": {text: good, "int2": b"junk"}},
        {**saved, "codecs": {text: good, "no such": good}},
        {**saved, "codecs": {text: good[:-1]}},
        {**saved, "codecs": {text: 10**13}},
        {**saved, "codecs": {text: None}},
        {**saved, "codecs": {5: good}},
        {**saved, "codecs": {"int8\0": good}},
        {**saved, "codecs": None},
        {**saved, "codecs": [text]},
        {name: value for name, value in saved.items() if name != "codecs"},
        {**saved, "rank": 3},
        {**saved, "version": True},
        [saved],
        None,
    ]
    for state in bad_states:
        with pytest.raises(errors.CodecError) as caught:
            comm.load_state_dict(state)
        assert caught.value.rank == 0
        assert comm.state_dict() == before, state
    comm.close()


def test_a_state_is_restored_with_what_it_does_not_name() -> None:
    (comm,) = Communicator.local(1)
    _reduce(comm, A, "a")
    saved = comm.state_dict()
    first = [_reduce(comm, A, "a"), _reduce(comm, B, "b")]
    comm.load_state_dict(saved)
    second = [_reduce(comm, A, "a"), _reduce(comm, B, "b")]
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one, other)
    assert not np.array_equal(_reduce(comm, B, "b"), second[1]), "there is no residual to be seen"
    comm.close()


def test_a_state_is_not_taken_over_under_a_call() -> None:
    first, second = Communicator.local(2)
    saved = first.state_dict()
    work = first.all_reduce(np.ones(500, np.float32), codec=A, key="a", async_op=True)
    with pytest.raises(errors.InvalidArgumentError, match="'a' has not completed"):
        first.load_state_dict(saved)
    with pytest.raises(errors.InvalidArgumentError, match=r"'a' .* held by a call that has not completed"):
        first._codecs[A].encode(0, 0, 0, "a", None)
    second.all_reduce(np.ones(500, np.float32), codec=A, key="a")
    assert work is not None
    work.wait()
    first.load_state_dict(saved)


def test_a_bad_codec_state() -> None:
    codec = gcomm.codec(A)
    codec.encode(np.ones(5, np.float32), key="a")
    state = codec.state_dict()
    bad_states: list[Any] = [
        {},
        None,
        [state],
        {**state, "state": 5},
        {**state, "state": 10**13},
        {**state, "state": "x"},
        {**state, "state": None},
        {**state, "state": b""},
        {**state, "spec": B},
        {**state, "version": 2},
        {**state, "version": True},
    ]
    for bad in bad_states:
        with pytest.raises(errors.CodecError):
            codec.load_state_dict(bad)
        assert codec.state_dict() == state
    codec.load_state_dict({**state, "state": bytearray(state["state"])})
    assert codec.state_dict() == state


def test_canonical_texts() -> None:
    (comm,) = Communicator.local(1)
    _reduce(comm, "int4:min_bytes=0:ef=1", "a")
    assert list(comm.state_dict()["codecs"]) == [gcomm.codec(A).spec]
