"""What GIFT remembers: saved states continue to the same bits, damaged ones are refused, and error feedback
loses nothing in the long run, across refreshes.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from gift_data import F32, F64, codecs_of, gradients, reduced
from reference import decoder

import gcomm
from gcomm.errors import CodecError

SHAPE = (48, 96)
MODES = [
    "mode=scale:rank=6",
    "mode=split:rank=6",
    "mode=rows:rank=6",
    "geometry=factored",
    "geometry=elementwise",
]


def _bits(results: list[F32]) -> list[bytes]:
    return [result.tobytes() for result in results]


@pytest.mark.parametrize("options", ["", ":ef=1", ":rounding=stochastic:seed=3", ":ef=1:rounding=stochastic"])
@pytest.mark.parametrize("mode", [*MODES, ""])
def test_a_saved_run_goes_on_as_if_it_never_stopped(mode: str, options: str) -> None:
    text = f"gift+int4:{mode}:refresh=3:min_bytes=0{options}".replace("::", ":")
    ranks, steps = 2, [gradients(SHAPE, 2, step, turn=0.1) for step in range(12)]
    whole = _bits(reduced(codecs_of(text, ranks), steps))
    for stop in (0, 1, 5, 9):
        first = codecs_of(text, ranks)
        before = _bits(reduced(first, steps[:stop]))
        states = [codec.state_dict() for codec in first]
        second = codecs_of(text, ranks)
        reduced(second, [gradients(SHAPE, ranks, 99)])  # replaced by what is loaded
        for codec, state in zip(second, states, strict=True):
            codec.load_state_dict(state)
            assert codec.state_dict() == state
        assert [codec.report() for codec in second] == [codec.report() for codec in first]
        assert before + _bits(reduced(second, steps[stop:])) == whole, f"stopped after {stop}"


def test_the_state_lives_in_the_communicator_of_a_text() -> None:
    """A codec given as text is kept there, and saved with it."""
    comms = gcomm.Communicator.local(1)
    x = gradients(SHAPE, 1, 0)[0]
    text = "gift+int4:mode=rows:rank=6:min_bytes=0"
    first, second = x.copy(), x.copy()
    comms[0].all_reduce(first, codec=text, key="w")
    state = comms[0].state_dict()
    comms[0].all_reduce(second, codec=text, key="w")
    assert first.tobytes() != second.tobytes()
    (other,) = gcomm.Communicator.local(1)
    other.load_state_dict(state)
    again = x.copy()
    other.all_reduce(again, codec=text, key="w")
    assert again.tobytes() == second.tobytes()


def _resealed(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", decoder.crc32c(data[:-4]))


@pytest.mark.parametrize("mode", MODES)
def test_damaged_states_are_refused(mode: str) -> None:
    text = f"gift+int4:{mode}:ef=1:min_bytes=0"
    codecs = codecs_of(text, 1)
    reduced(codecs, [gradients((16, 24), 1, step) for step in range(2)])
    codec, state = codecs[0], codecs[0].state_dict()
    data: bytes = state["state"]

    def refused(damaged: bytes) -> None:
        with pytest.raises(CodecError):
            codec.load_state_dict({**state, "state": damaged})
        assert codec.state_dict() == state

    for i in range(0, len(data), 97):
        refused(data[:i] + bytes([data[i] ^ 0x10]) + data[i + 1 :])
        refused(data[:i])
        refused(_resealed(data[: i + 4]))
    refused(data + b"\0")
    refused(_resealed(data[:-4] + b"\0" + data[-4:]))
    # The matrix's shape: other ones, absurd ones. The CRC is right.
    at = data.index(struct.pack("<QQ", 16, 24))
    for shape in [
        (16, 25),
        (0, 24),
        (0, 0),
        (2**32, 2**32),
        (2**63, 2),
        (1, 2**62),
        (7, 2**35),
        (2**40, 2**20),
    ]:
        refused(_resealed(data[:at] + struct.pack("<QQ", *shape) + data[at + 16 :]))
    # What was learned, everywhere: a basis is refused as soon as a bit is wrong; weights that load make no
    # NaN.
    for i in range(at + 16, len(data) - 4, 31):
        damaged = _resealed(data[:i] + bytes([data[i] ^ 0xFF]) + data[i + 1 :])
        other = gcomm.codec(text)
        try:
            other.load_state_dict({**state, "state": damaged})
        except CodecError:
            continue
        assert "geometry" in mode or i < at + 28, f"byte {i} of a basis"
        (result,) = reduced([other], [gradients((16, 24), 1, 5)])
        assert np.isfinite(result).all()


def test_states_of_other_codecs_are_refused() -> None:
    state = gcomm.codec("gift+int4").state_dict()
    for text in ("int4", "gift+int4:rank=5", "gift+int4:geometry=factored"):
        with pytest.raises(CodecError, match="codec state"):
            gcomm.codec(text).load_state_dict(state)


# ---- error feedback ------------------------------------------------------------------------------------------

STEPS = 30


def _bias(text: str, ranks: int, op: str, turn: float) -> tuple[float, float]:
    """Of the average of results against that of exact sums, and of a single result, typically: relative."""
    steps = [gradients(SHAPE, ranks, step, turn=turn) for step in range(STEPS)]
    results = [result.astype(np.float64) for result in reduced(codecs_of(text, ranks), steps, op)]
    divisor = ranks if op == "avg" else 1
    exact = [np.add.reduce([part.astype(np.float64) for part in parts]) / divisor for parts in steps]
    size = float(np.linalg.norm(np.mean(exact, axis=0)))
    singles = [np.linalg.norm(result - total) for result, total in zip(results, exact, strict=True)]
    return float(np.linalg.norm(np.mean(results, axis=0) - np.mean(exact, axis=0))) / size, float(
        np.median(singles)
    ) / size


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("mode", MODES)
def test_error_feedback_loses_nothing_in_the_long_run(mode: str, op: str) -> None:
    """What an element lost is sent later: after T steps the average is off by a T-th of that."""
    ranks = 3 if op == "avg" else 2
    for refresh in (4, 1000):
        text = f"gift+int3:{mode}:refresh={refresh}:min_bytes=0"
        bias, single = _bias(text + ":ef=1", ranks, op, 0.1)
        direct, _ = _bias("int3:min_bytes=0", ranks, op, 0.1)
        assert bias < 1.5 * single / STEPS, (text, op, bias, single)
        assert bias < direct, (text, op, bias, direct)


def _residual(codec: gcomm.Codec) -> F64:
    """That of the only key in a codec's state, as docs/wire-format.md, section 5, has it."""
    data: bytes = codec.state_dict()["state"]
    at = 8 + 8 + len(codec.spec) + 8
    (length,) = struct.unpack_from("<Q", data, at)
    at += 8 + length + 8
    (count,) = struct.unpack_from("<Q", data, at)
    return np.frombuffer(data, "<f4", count, at + 8).astype(np.float64)


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("shape", [(97, 64), (200, 40), (64, 300)])
def test_what_rows_lost_is_in_the_residuals(shape: tuple[int, int], op: str) -> None:
    """Exact sums less results are what the ranks still hold: each of its input, and in its own rows of the sum.

    The first call goes direct, in shards of tiles; the others in shards of whole rows.
    """
    ranks, count = 3, shape[0] * shape[1]
    rows = 64 // math.gcd(shape[1], 64)
    while rows * shape[1] < 4096 or (rows < 16 and 2 * rows * shape[1] <= 65536):
        rows *= 2
    granule = rows * shape[1]
    length = math.ceil(math.ceil(count / ranks) / granule) * granule
    codecs = codecs_of("gift+int3:mode=rows:rank=6:refresh=2:ef=1:min_bytes=0", ranks)
    missing = np.zeros(count)
    largest = 0.0
    divisor = ranks if op == "avg" else 1
    for step in range(6):
        parts = gradients(shape, ranks, step, turn=0.1)
        (result,) = reduced(codecs, [parts], op)
        missing += np.add.reduce([part.astype(np.float64) for part in parts]).ravel() / divisor - result.ravel()
        held = np.zeros(count)
        for rank, codec in enumerate(codecs):
            own = np.zeros(count, bool)
            own[rank * length : (rank + 1) * length] = True
            residual = _residual(codec)
            held += np.where(own, residual, residual / divisor)
        largest = max(largest, float(np.abs(held).max()))
        np.testing.assert_allclose(held, missing, atol=2e-5 * np.abs(result).max(), err_msg=f"step {step}")
    assert largest > 0.1
