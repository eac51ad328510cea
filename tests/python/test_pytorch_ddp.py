"""DistributedDataParallel with gcomm's hook: what is averaged, and that all ranks agree on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ddp_models import Mixed, bits, train, wrapped
from ranks import RankPools

import gcomm
from gcomm.pytorch import DDPState, log_to, summary

# ---- exact: plain DistributedDataParallel's own results -----------------------------------------------------

_VARIANTS: dict[str, tuple[dict[str, Any], int]] = {
    "unused parameters": ({"find_unused_parameters": True}, 1),
    "static graph": ({"static_graph": True}, 1),
    "no_sync": ({"find_unused_parameters": True}, 3),
    "gradients as views": ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, 2),
    "one bucket": ({"find_unused_parameters": True, "bucket_cap_mb": 100}, 1),
}


def _exact_and_plain(rank: int, _size: int) -> dict[str, list[list[bytes]]]:
    out = {}
    for name, (options, accumulate) in _VARIANTS.items():
        results = []
        for hook in (False, True):
            torch.manual_seed(0)
            model = Mixed()
            state = DDPState(None, model, error_every=2) if hook else None
            train(wrapped(model, state, **options), rank, range(5), accumulate)
            results.append(bits(model))
            if state is not None:
                assert state.step == 5, name
                assert state.stats["steps"] == 5, name
                assert state.stats["parameters"]["up.weight"]["error"] == 0, name
        out[name] = results
    return out


def test_exact_averages_are_plain_ddps(rank_pool: RankPools) -> None:
    """codec=None: bit for bit what DistributedDataParallel computes (2 ranks: both halve exactly), for all its
    ways of working and all kinds of parameters.
    """
    for results in rank_pool(2).run(_exact_and_plain):
        for name, (plain, ours) in results.items():
            assert ours == plain, name


def _uneven(rank: int, _size: int) -> list[list[bytes]]:
    results = []
    for state in (None, DDPState(None, error_every=2)):
        torch.manual_seed(0)
        model = Mixed(odd_types=False)
        ddp = wrapped(model, state, find_unused_parameters=True)
        with ddp.join():
            train(ddp, rank, range(3 + 2 * rank))
        results.append(bits(model))
    return results


def test_uneven_inputs(rank_pool: RankPools) -> None:
    """``join()``: a rank that has no more batches goes on with zeros, outside of any backward."""
    for plain, ours in rank_pool(2).run(_uneven):
        assert ours == plain


# ---- lossy: the same bits everywhere ------------------------------------------------------------------------

_LOSSY = ["nvfp4", "gift+nvfp4:refresh=2", "int4:ef=1", "fp8_e4m3:rounding=stochastic", "bf16"]


def _lossy(rank: int, _size: int, codecs: list[str], steps: int) -> list[list[bytes]]:
    out = []
    for codec in codecs:
        torch.manual_seed(0)
        model = Mixed(width=32)
        state = DDPState(codec + ":min_bytes=0", model, warmup_steps=1)
        train(wrapped(model, state, find_unused_parameters=True), rank, range(steps))
        assert all(torch.isfinite(p).all() for p in model.parameters()), codec
        out.append(bits(model))
    return out


def _agree(results: list[list[list[bytes]]], codecs: list[str]) -> None:
    for i, codec in enumerate(codecs):
        assert all(each[i] == results[0][i] for each in results), codec
    assert len({b"".join(each) for each in results[0]}) == len(codecs), "codecs made no difference"


def test_parameters_have_the_same_bits_on_all_ranks(rank_pool: RankPools) -> None:
    _agree(rank_pool(3).run(_lossy, _LOSSY, 20), _LOSSY)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_codec_for_200_steps(rank_pool: RankPools) -> None:
    names = [row.name for row in gcomm.codecs() if row.available]
    codecs = [
        *names,
        *(f"gift+{name}" for name in names if name != "fp32"),  # gift has nothing to add to it
        "hadamard+int4",
        "int2:ef=1",
        "gift+int4:geometry=factored",
    ]
    _agree(rank_pool(2).run(_lossy, codecs, 200, timeout=1700), codecs)


# ---- statistics and rules -----------------------------------------------------------------------------------


class _Writer:
    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.rows.append((tag, value, step))


def _statistics(rank: int, size: int) -> tuple[dict[str, Any], str, list[tuple[str, float, int]]]:
    torch.manual_seed(0)
    model = Mixed(width=128)
    state = DDPState("nvfp4", rules={"up.weight": "int8", "down": None}, error_every=2)  # the model is found
    writer = _Writer()
    state.add_callback(log_to(writer), every=2)
    train(wrapped(model, state, find_unused_parameters=True), rank, range(4))
    return state.stats, summary(state), writer.rows


def test_statistics(rank_pool: RankPools) -> None:
    results = rank_pool(2).run(_statistics)
    stats, text, rows = results[0]
    parameters = stats["parameters"]
    count = 128 * 3 * 128
    up = parameters["up.weight"]
    # Half of it to the owner, and the sum of the other half back, in each of 4 steps.
    assert up["codec"] == "int8"
    assert up["calls"] == 4
    assert up["raw_path_calls"] == 0
    assert up["raw_bytes"] == 4 * 4 * count
    assert up["wire_bytes"] == 4 * (count + 2 * count // 128)
    assert 3.9 < up["ratio"] < 4
    assert 0 < up["error"] < 0.02
    assert parameters["down"]["codec"] == "fp32"
    assert parameters["down"]["error"] == 0
    assert parameters["norm.weight"]["raw_path_calls"] == 4
    assert parameters["wide"]["codec"] == "exact"
    assert parameters["narrow"]["codec"] == "nvfp4"
    assert "frozen.weight" not in parameters
    assert "empty" not in parameters
    assert stats["wire_bytes"] > sum(row["wire_bytes"] for row in parameters.values())  # headers
    assert stats["wire_bytes"] == results[1][0]["wire_bytes"]
    assert stats["encode_s"] > 0
    lines = text.splitlines()
    assert [word for word in ("parameter", "codec", "sent", "ratio", "error") if word not in lines[0]] == []
    assert any(line.split()[:2] == ["up.weight", "int8"] for line in lines)
    assert lines[-1].startswith("all ")
    assert len(lines) == len(parameters) + 2
    assert {step for *_, step in rows} == {2, 4}
    assert {"gcomm/wire_bytes", "gcomm/ratio", "gcomm/comm_s"} <= {tag for tag, *_ in rows}
