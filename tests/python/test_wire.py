"""What really travels: every message of every verb, caught on the way and read by the independent decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from reference import decoder, replay
from reference.encoder import ReferenceCodec
from reference.message import Agreement, agreement_hash
from wiretap import Sent, run_tapped

import gcomm

Comm = gcomm.Communicator
DATA, HEADER_ONLY, DISAGREEMENT, ACK = 1, 2, 3, 4
RANKS = 3


def _values(rank: int, count: int) -> np.ndarray:
    return np.random.default_rng([3, rank]).standard_normal(count).astype(np.float32)


def _tensor(rank: int, count: int) -> torch.Tensor:
    return torch.from_numpy(_values(rank, count))


def _capture(
    fn: Callable[..., Any], *args: Any, ranks: int = RANKS
) -> tuple[list[Any], list[tuple[Sent, Any, bytes]]]:
    """Results, and messages as (sent, header, payload): every one of them must parse."""
    results, sent = run_tapped(fn, ranks, *args)
    for result in results:
        if isinstance(result, Exception):
            raise result
    messages = [(one, *decoder.parse_message(one.data)) for one in sent]
    for one, header, payload in messages:
        assert header.source == one.source
        assert header.phase in (0, 1, 2)
        if header.kind == HEADER_ONLY:
            assert payload == b""
    return results, messages


def _from_to(messages: list[tuple[Sent, Any, bytes]], source: int, target: int) -> list[tuple[Any, bytes]]:
    return [
        (header, payload)
        for sent, header, payload in messages
        if (sent.source, sent.target) == (source, target)
    ]


def _all_reduce(comm: Comm, text: str, count: int, calls: int = 1) -> None:
    for _ in range(calls):
        comm.all_reduce(_tensor(comm.rank, count), codec=text, key="k")


@pytest.mark.parametrize(
    "text", ["fp8_e4m3", "int4:crc=1", "hadamard+nvfp4", "int8:rounding=stochastic:seed=3"]
)
def test_two_phases(text: str) -> None:
    """Phase 1 brings each owner its encoded shard, phase 2 the encoded sum to everybody; nothing else
    travels.
    """
    count = 20000
    _, messages = _capture(_all_reduce, text, count)
    shards = replay.shards(count, RANKS)
    codec = ReferenceCodec(text)
    inputs = [_values(rank, count) for rank in range(RANKS)]
    expected_hash = agreement_hash(Agreement(1, 0, 0, 0, (count,), gcomm.codec(text).spec, ("k",)))
    seen = 0
    for source in range(RANKS):
        own = shards[source]
        parts = []
        for rank, x in enumerate(inputs):
            where = {"key": "k", "element": own.start, "source": rank}
            exact = rank == source
            parts.append(x[own] if exact else codec.decode(codec.encode(x[own], **where), own.stop - own.start))
        total = replay.rank_sum(parts, "sum", "float32")
        encoded_sum = codec.encode(total, key="k", element=own.start, source=-1, is_sum=True)
        for target in range(RANKS):
            if target == source:
                continue
            theirs = shards[target]
            encoded = codec.encode(inputs[source][theirs], key="k", element=theirs.start, source=source)
            found = {1: b"", 2: b""}
            for header, payload in _from_to(messages, source, target):
                seen += 1
                assert header.kind == DATA
                assert header.sequence == 0
                assert header.agreement == expected_hash
                assert bool(header.flags & decoder.FLAG_CRC) == ("crc=1" in text)
                assert not header.flags & (decoder.FLAG_RAW | decoder.FLAG_LENGTHS | decoder.FLAG_NONFINITE)
                found[header.phase] += payload
            assert found[1] == encoded, (source, target)
            assert found[2] == encoded_sum, (source, target)
    assert seen == len(messages) == 2 * RANKS * (RANKS - 1)


def test_raw_path_sends_elements_as_they_are() -> None:
    """A small call is one exchange of inputs, marked as raw."""
    _, messages = _capture(_all_reduce, "fp8_e4m3", 100)
    assert len(messages) == RANKS * (RANKS - 1)
    for sent, header, payload in messages:
        assert header.kind == DATA
        assert header.flags == decoder.FLAG_RAW
        assert header.count == 100
        assert payload == _values(sent.source, 100).tobytes()


def test_sequence_counts_calls() -> None:
    """Numbers of a lane's calls, from 0; the hash stays the same for the same call."""
    _, messages = _capture(_all_reduce, "fp8_e4m3", 100, 5)
    for source in range(RANKS):
        headers = [header for header, _ in _from_to(messages, source, (source + 1) % RANKS)]
        assert [header.sequence for header in headers] == [0, 1, 2, 3, 4]
        assert len({header.agreement for header in headers}) == 1


def _nonfinite(comm: Comm) -> None:
    x = _tensor(comm.rank, 20000)
    if comm.rank == 1:
        x[7] = float("nan")
    comm.all_reduce(x, codec="int8")


def test_nonfinite_flag() -> None:
    """Who encoded a NaN says so, to whom it sent it; the owner of the sum tells everybody."""
    _, messages = _capture(_nonfinite)
    for sent, header, _ in messages:
        has = bool(header.flags & decoder.FLAG_NONFINITE)
        # Element 7 is in rank 0's shard: rank 1 encodes it for rank 0, which sends the sum.
        assert has == (
            (sent.source, sent.target, header.phase) == (1, 0, 1) or (sent.source, header.phase) == (0, 2)
        )


def _every_verb(comm: Comm) -> None:
    n, rank, size = 5000, comm.rank, comm.size
    x = _tensor(rank, n * size)
    part = torch.empty(n)
    comm.reduce_scatter_tensor(part, x, "avg", codec="int8", key="rs")
    comm.all_gather_into_tensor(torch.empty(n * size), part, codec="bf16")
    comm.all_to_all_single(torch.empty(n * size), x, codec=None)
    comm.broadcast(part, 2, codec="int4", key="ü")
    comm.all_reduce_coalesced([x[:10].clone(), x[:0].clone(), x[:20].clone()], "avg", codec=None)
    comm.all_reduce(torch.empty(0), codec="int8")
    comm.barrier()


def test_agreement_hash_of_every_verb() -> None:
    """Each verb's messages carry the hash of its arguments, and every pair of ranks hears from one another."""
    _, messages = _capture(_every_verb)
    wanted = [
        Agreement(2, 1, 0, 0, (5000,), "int8", ("rs",)),
        Agreement(3, 0, 0, 0, (5000,), "bf16", ("",)),
        None,  # all_to_all: counts differ from pair to pair, so each message names its own
        Agreement(5, 0, 2, 0, (5000,), "int4", ("ü",)),
        Agreement(1, 1, 0, 0, (10, 0, 20), "fp32", ("", "", "")),
        Agreement(1, 0, 0, 0, (0,), "int8", ("",)),
        None,  # barrier
    ]
    for source in range(RANKS):
        for target in range(RANKS):
            if source == target:
                continue
            pairs = _from_to(messages, source, target)
            assert sorted({header.sequence for header, _ in pairs}) == list(range(len(wanted)))
            for header, _ in pairs:
                want = wanted[header.sequence]
                if want is not None:
                    assert header.agreement == agreement_hash(want), want
            assert len({header.agreement for header, _ in pairs}) == len(wanted)


def _ring(comm: Comm) -> list[float]:
    x, y = _tensor(comm.rank, 1000), torch.empty(1000)
    sending = comm.send(x, (comm.rank + 1) % comm.size, codec="int8:min_bytes=0", key="a", async_op=True)
    comm.recv(y, (comm.rank - 1) % comm.size, codec="int8:min_bytes=0", key="a")
    assert sending is not None
    sending.wait()
    return y.tolist()


def test_point_to_point_is_acknowledged() -> None:
    """One data message on its own lane, and one acknowledgement back on another."""
    results, messages = _capture(_ring)
    codec = ReferenceCodec("int8")
    data = [(sent, header, payload) for sent, header, payload in messages if header.kind == DATA]
    acks = [(sent, header, payload) for sent, header, payload in messages if header.kind == ACK]
    assert (len(data), len(acks)) == (RANKS, RANKS)
    for sent, header, payload in data:
        assert (sent.target - sent.source) % RANKS == 1
        assert sent.lane == 1
        assert payload == codec.encode(_values(sent.source, 1000))
        assert results[sent.target] == codec.decode(payload, 1000).tolist()
        assert header.count == 1000
    for sent, header, payload in acks:
        assert (sent.source - sent.target) % RANKS == 1
        assert sent.lane == 2
        assert payload == b""
        assert header.sequence == 0


def _disagree(comm: Comm) -> str:
    try:
        comm.all_reduce(torch.ones(100 + comm.rank // 2), codec="int8")
    except gcomm.errors.MismatchError as error:
        comm.all_reduce(torch.ones(10), codec=None)
        return str(error)
    return ""


def test_disagreement_is_told_in_words() -> None:
    """Everybody sends everybody its own call in words, under the call's number, and goes on."""
    texts, messages = _capture(_disagree)
    assert len(set(texts)) == 1
    for source in range(RANKS):
        for target in range(RANKS):
            if source == target:
                continue
            words = [(h, p) for h, p in _from_to(messages, source, target) if h.kind == DISAGREEMENT]
            assert len(words) == 1
            header, payload = words[0]
            assert header.sequence == 0
            assert f"all_reduce(sum, float32[{100 + source // 2}], codec int8)".encode() in payload


# ---- messages that were changed on the way ------------------------------------------------------------------


class _Flip:
    """Turns one bit of the n-th message round."""

    def __init__(self, message: int, byte: int, bit: int) -> None:
        self.message, self.byte, self.bit = message, byte, bit
        self.count = 0
        self.done = False

    def __call__(self, sent: Sent) -> bytes:
        self.count += 1
        if self.count - 1 != self.message or self.byte >= len(sent.data):
            return sent.data
        self.done = True
        data = bytearray(sent.data)
        data[self.byte] ^= 1 << self.bit
        return bytes(data)


def _one_call(comm: Comm, text: str) -> np.ndarray:
    x = _tensor(comm.rank, 10000)
    comm.all_reduce(x, codec=text, timeout=5)
    return x.numpy()


@pytest.mark.parametrize("byte", range(48))
def test_a_flipped_bit_in_a_header_is_an_error(byte: int) -> None:
    """Whatever field it hits, in either phase: an error on every rank, within the deadline, never a wrong
    sum.
    """
    for message in (0, 2):  # of four: two in each phase
        flip = _Flip(message, byte, byte % 8)
        results, _ = run_tapped(_one_call, 2, "int8", alter=flip)
        assert flip.done
        assert any(isinstance(result, gcomm.errors.GcommError) for result in results), results
        assert all(isinstance(result, (gcomm.errors.GcommError, np.ndarray)) for result in results)


def test_a_flipped_bit_in_a_payload_is_found_by_its_crc() -> None:
    """With crc=1; without, codes decode to something and no memory is touched that should not be."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        byte, bit = int(rng.integers(48, 1800)), int(rng.integers(8))
        flip = _Flip(0, byte, bit)
        results, _ = run_tapped(_one_call, 2, "int8:crc=1", alter=flip)
        assert flip.done
        errors = [result for result in results if isinstance(result, gcomm.errors.GcommError)]
        assert any("CRC" in str(error) for error in errors), results
        results, _ = run_tapped(_one_call, 2, "int8", alter=_Flip(0, byte, bit))
        assert all(isinstance(result, np.ndarray) for result in results), results
