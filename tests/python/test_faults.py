"""Ranks that disagree, die or stop: an error on every rank that says who and what, and never a hang."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
from ranks import TRANSPORTS, Outcome, RankPools, run_env, run_local, run_over, start_ranks

import gcomm
from gcomm import Communicator, errors

X = 5000


def _differ(comm: Communicator, how: str) -> str:
    """Every rank makes a call that differs on rank 1; then one that doesn't."""
    odd = comm.rank == 1
    x = torch.ones(X)
    calls: dict[str, Any] = {
        "count": lambda: comm.all_reduce(torch.ones(X + odd)),
        "small count": lambda: comm.all_reduce(torch.ones(3 + odd)),
        "path": lambda: comm.all_reduce(torch.ones(3 if odd else 100_000)),
        "dtype": lambda: comm.all_reduce(x.half() if odd else x),
        "codec": lambda: comm.all_reduce(x, codec="int8" if odd else "int4"),
        "codec option": lambda: comm.all_reduce(x, codec="int8:seed=1" if odd else "int8"),
        "exact": lambda: comm.all_reduce(x, codec=None if odd else "fp8_e4m3"),
        "op": lambda: comm.all_reduce(x, "avg" if odd else "sum"),
        "key": lambda: comm.all_reduce(x, codec="int8:ef=1", key="b" if odd else "a"),
        "verb": lambda: comm.broadcast(x, 0) if odd else comm.all_reduce(x),
        "root": lambda: comm.broadcast(x, 1 if odd else 0),
        "barrier": lambda: comm.barrier() if odd else comm.all_reduce(x),
        "coalesced": lambda: comm.all_reduce_coalesced([x, x.clone()] if odd else [x]),
        "gather": lambda: comm.all_gather_into_tensor(torch.empty(comm.size * (X + odd)), torch.ones(X + odd)),
    }
    with pytest.raises(errors.MismatchError) as caught:
        calls[how]()
    assert torch.equal(x, torch.ones(X))
    # The communicator goes on.
    for _ in range(2):
        comm.all_reduce(x, codec=None)
        assert torch.equal(x, torch.full((X,), float(comm.size)))
        x = torch.ones(X)
    return str(caught.value)


# What the error must mention, beside rank 1.
WORDS = {
    "count": "5001",
    "small count": "4",
    "path": "100000",
    "dtype": "16",
    "codec": "int4",
    "codec option": "seed=1",
    "exact": "fp8_e4m3",
    "op": "avg",
    "key": "b",
    "verb": "broadcast",
    "root": "1",
    "barrier": "barrier",
    "coalesced": "2",
    "gather": "5001",
}


@pytest.mark.parametrize("how", list(WORDS))
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_that_disagree(transport: str, how: str, rank_pool: RankPools) -> None:
    ranks = 3 if how in ("count", "verb") else 2
    texts = run_over(transport, ranks, rank_pool, _differ, how)
    assert texts == [texts[0]] * ranks
    assert WORDS[how] in texts[0]
    assert "rank 1" in texts[0]


def _differ_in_key(comm: Communicator, keys: tuple[str, str]) -> str:
    with pytest.raises(errors.MismatchError) as caught:
        comm.all_reduce(torch.ones(3), key=keys[comm.rank])
    return str(caught.value)


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        (("a" + "é" * 40, "b"), "key 'a" + "é" * 29 + "...', fingerprint "),
        (("é" * 31 + "0", "é" * 31 + "1"), "key '" + "é" * 30 + "...', fingerprint "),
        (("line\nfeed", "line\tfeed"), r"key 'line\x0afeed'"),
        (("\x7f", r"\x7f"), r"key '\x7f'"),
    ],
)
def test_keys_that_are_hard_to_show(keys: tuple[str, str], shown: str) -> None:
    texts = run_local(_differ_in_key, 2, keys)
    assert texts == [texts[0]] * 2
    assert texts[0].startswith("ranks disagree on key: rank 0: ")
    assert shown in texts[0]
    of_rank_0, of_rank_1 = texts[0].split("; rank 1: ")
    assert of_rank_0.partition("key ")[2].partition("key ")[2] != of_rank_1.partition("key ")[2]


def _send_mismatch(comm: Communicator) -> str:
    with pytest.raises(errors.MismatchError) as caught:
        (comm.send if comm.rank == 0 else comm.recv)(torch.ones(X + comm.rank), 1 - comm.rank)
    x = torch.full((3,), float(comm.rank))
    if comm.rank == 0:
        comm.send(x, 1)
    else:
        comm.recv(x, 0)
        assert x.tolist() == [0.0] * 3
    return str(caught.value)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sender_and_receiver_that_disagree(transport: str, rank_pool: RankPools) -> None:
    texts = run_over(transport, 2, rank_pool, _send_mismatch)
    assert texts[0] == texts[1]
    assert "5000" in texts[0]
    assert "5001" in texts[0]


def _nonfinite(comm: Communicator) -> None:
    x = torch.ones(X)
    if comm.rank == 1:
        x[7] = float("nan")
    y = x.clone()
    with pytest.raises(errors.NonFiniteError):
        comm.all_reduce(y, codec="int8:nonfinite=raise")
    assert torch.equal(y.nan_to_num(), x.nan_to_num())
    comm.all_reduce(y, codec="int8")
    assert y[7].isnan()
    assert not y[:7].isnan().any() or y.isnan().sum() == 128


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nonfinite_raise_is_raised_on_every_rank(transport: str, rank_pool: RankPools) -> None:
    run_over(transport, 2, rank_pool, _nonfinite)


def _abort(comm: Communicator) -> None:
    x = torch.ones(X)
    comm.all_reduce(x)
    if comm.rank == 1:
        time.sleep(0.3)
        comm.abort("loss is NaN")
    started = time.monotonic()
    with pytest.raises(errors.GcommError) as caught:  # noqa: PT012 (the first call may come before the abort)
        for _ in range(2):
            comm.all_reduce(x)
    assert time.monotonic() - started < 5
    assert isinstance(caught.value, (errors.AbortedError, errors.ClosedError, errors.PeerLostError))
    if comm.transport != "torch":
        assert "loss is NaN" in str(caught.value)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_reaches_every_rank(transport: str, rank_pool: RankPools) -> None:
    run_over(transport, 3, rank_pool, _abort)


# ---- processes that die or stop -----------------------------------------------------------------------------


def _until_it_fails(rank: int, size: int, transport: str, count: int) -> Any:
    comm = Communicator.from_torch(transport=transport)
    other = Communicator.local(1)[0]
    x = torch.ones(count)
    comm.all_reduce(x, "avg")
    print("ready", flush=True)
    started = time.monotonic()
    try:
        while True:
            comm.all_reduce(x, "avg", timeout=4.0)
            started = time.monotonic()
    except errors.GcommError as error:
        took = time.monotonic() - started
        with pytest.raises(errors.GcommError):
            comm.barrier()
        comm.close()
        # The process and its other communicators go on.
        y = torch.ones(3)
        other.all_reduce(y)
        return type(error).__name__, error.rank, str(error), took


def _survivors(outcomes: list[Outcome], victim: int) -> list[Any]:
    survivors = [outcome for outcome in outcomes if outcome.rank != victim]
    for outcome in survivors:
        assert outcome.ok, outcome.error or f"rank {outcome.rank} ended with {outcome.exitcode}"
    return [outcome.value for outcome in survivors]


def _run_and_signal(
    transport: str, victim: int, sig: int, count: int, tmp_path: Any, *, env: dict[str, str] | None = None
) -> list[Any]:
    ranks = 3
    output = tmp_path / "output"
    with start_ranks(_until_it_fails, ranks, transport, count, env=env, output=str(output)) as processes:
        deadline = time.monotonic() + 30
        while not output.exists() or output.read_text().count("ready") < ranks:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.2)
        processes.kill(victim, sig)
        others = [rank for rank in range(ranks) if rank != victim]
        outcomes = processes.join(40, only=others)
        if sig == signal.SIGSTOP:
            processes.kill(victim, signal.SIGKILL)
    return _survivors(outcomes, victim)


@pytest.mark.parametrize("count", [1000, 2_000_000], ids=["small", "large"])
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("transport", ["tcp", "torch"])
def test_killed_rank(transport: str, victim: int, count: int, tmp_path: Any) -> None:
    for kind, rank, text, took in _run_and_signal(transport, victim, signal.SIGKILL, count, tmp_path):
        assert kind == "PeerLostError", text
        assert rank == victim, text
        assert f"rank {victim}" in text
        assert took < 3


def test_killed_rank_over_sockets(tmp_path: Any) -> None:
    env = {"GCOMM_TCP_SHM": "0"}
    for kind, rank, text, took in _run_and_signal("tcp", 2, signal.SIGKILL, 2_000_000, tmp_path, env=env):
        assert (kind, rank) == ("PeerLostError", 2), text
        assert took < 3


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("transport", ["tcp", "torch"])
def test_stopped_rank(transport: str, victim: int, tmp_path: Any) -> None:
    for kind, _, text, took in _run_and_signal(transport, victim, signal.SIGSTOP, 1000, tmp_path):
        assert kind in ("TimeoutError", "PeerLostError", "AbortedError"), text
        assert f"rank {victim}" in text or transport == "torch", text
        assert took < 12


def test_stopped_rank_over_sockets(tmp_path: Any) -> None:
    env = {"GCOMM_TCP_SHM": "0"}
    for kind, _, text, took in _run_and_signal("tcp", 1, signal.SIGSTOP, 2_000_000, tmp_path, env=env):
        assert kind in ("TimeoutError", "PeerLostError"), text
        assert "rank 1" in text
        assert took < 12


def _media(rank: int, size: int) -> tuple[list[str], int | float]:
    os.environ["GCOMM_TCP_SHM"] = "0" if rank == 1 else "1"
    with Communicator.from_env() as comm:
        x = torch.full((300_000,), float(rank + 1))
        comm.all_reduce(x, codec=None)
        assert bool((x == 6.0).all())
        media = [comm.medium(peer) for peer in range(size) if peer != rank]
        return media, comm.stats["shared_memory_peers"]


def test_each_pair_uses_what_both_allow() -> None:
    assert run_env(_media, 3) == [(["tcp", "shm"], 1), (["tcp", "tcp"], 0), (["shm", "tcp"], 1)]


def _bad_switch(rank: int, size: int) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="GCOMM_TCP_SHM: 'yes' is neither 0 nor 1"):
        Communicator.from_env()


def test_a_wrong_switch_is_named() -> None:
    run_env(_bad_switch, 1, env={"GCOMM_TCP_SHM": "yes"})


def test_a_lost_peer_of_one_communicator_leaves_the_others_alone() -> None:
    first, second = Communicator.local(2)
    third, fourth = Communicator.local(2)
    second.abort("gone")
    with pytest.raises(errors.AbortedError, match="gone"):
        first.all_reduce(torch.ones(3))
    x = torch.ones(3)
    work = third.all_reduce(x, async_op=True)
    fourth.all_reduce(torch.ones(3))
    assert work is not None
    work.wait()
    assert x.tolist() == [2.0] * 3
    for comm in (first, second, third, fourth):
        comm.close()


def _ten_thousand(comm: Communicator, calls: int) -> list[int]:
    import resource

    x = torch.ones(1000)
    big = torch.ones(50_000)
    peaks = []
    for _ in range(4):
        for _ in range(calls // 4):
            comm.all_reduce(x, "avg")
        comm.all_reduce(big, "avg", codec="int8")
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peaks


def _ten_thousand_on_tcp(rank: int, size: int) -> list[int]:
    with Communicator.from_torch() as comm:
        return _ten_thousand(comm, 10_000)


def test_memory_stays_flat(rank_pool: RankPools) -> None:
    for peaks in rank_pool(2).run(_ten_thousand_on_tcp):
        assert peaks[-1] - peaks[0] < 2000, peaks  # KiB


def _keeps_works(comm: Communicator) -> None:
    run = [comm.all_reduce(torch.ones(8), async_op=True) for _ in range(500)]
    for work in run:
        assert work is not None
        assert work.wait()


def test_many_works_in_flight() -> None:
    run_local(_keeps_works, 2)


def test_errors_survive_pickling() -> None:
    import pickle

    for name in errors.__all__:
        error = getattr(errors, name)("what", 3)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == "what"
        assert copy.rank == 3
        assert isinstance(copy, gcomm.errors.GcommError)
    assert issubclass(errors.TimeoutError, TimeoutError)
    assert issubclass(errors.CodecError, ValueError)
