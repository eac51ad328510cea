"""gcomm plan: known costs are found again, limits and monotony of the model, the command and its errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gcomm.cli import main
from gcomm.planner import Codec, Costs, FitError, Layout, fit, predict
from gcomm.planner.fit import errors_at, sort_rows, wire_bytes_per_element
from gcomm.planner.model import ITEM_BYTES, MOST_RANKS, chunks, predict_two_level, shard

COSTS = Costs(8e-6, 25e-6, 3e-6, 0.4e-9, 8e-9, 0.9, 2.0**22)
SIZES = [4 << (2 * k) for k in range(3, 13)]


def codec(name: str, seconds: float) -> Codec:
    return Codec(name, wire_bytes_per_element(name), seconds, seconds)


CODECS = [codec("none", 0.3e-9), codec("fp8_e4m3", 0.5e-9), codec("nvfp4", 0.8e-9)]


def on_links(ranks: int) -> Layout:
    return Layout(ranks, 1, 2)


def made_rows(ranks: list[int], costs: Costs = COSTS, sizes: list[int] = SIZES) -> list[dict[str, Any]]:
    """What a machine of these costs would measure."""
    return [
        {
            "collective": "all_reduce",
            "transport": "tcp",
            "world_size": n,
            "codec": one.name,
            "dtype": "float",
            "bytes": size,
            "time_us": predict(one, size // ITEM_BYTES, costs, on_links(n)).time_s * 1e6,
            "rel_err": {"none": 0.0, "fp8_e4m3": 0.03, "nvfp4": 0.1}[one.name],
        }
        for n in ranks
        for one in CODECS
        for size in sizes
    ]


@pytest.fixture
def rows_file(tmp_path: Path) -> str:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(made_rows([2, 4])), encoding="utf-8")
    return str(path)


def plan(*words: str) -> Any:
    return CliRunner().invoke(main, ["plan", *words])


# ---- the fit -------------------------------------------------------------------------------------------------


def test_known_costs_predict_what_was_not_measured() -> None:
    found = fit(sort_rows(made_rows([2, 4])), on_links)
    assert found.median_error < 0.02
    assert found.p90_error < 0.06
    assert found.costs.wire_s == pytest.approx(COSTS.wire_s, rel=0.05)
    # Sizes between and beyond, and other numbers of ranks, none of which it has seen.
    unseen = made_rows([3, 8, 16], sizes=[3 << 16, 5 << 20, 256 << 20])
    assert abs(errors_at(found, unseen, on_links)).max() < 0.1


def test_a_codec_that_was_only_measured_alone() -> None:
    alone = [
        {"codec": one.name, "encode_gbps": 4e-9 / one.encode_s, "decode_accumulate_gbps": 4e-9 / one.decode_s}
        for one in [*CODECS[1:], codec("int4", 0.7e-9)]
    ]
    found = fit(sort_rows([*made_rows([2, 4]), *alone]), on_links)
    count = 1 << 22
    want = predict(codec("int4", 0.7e-9), count, COSTS, on_links(2)).time_s
    assert predict(found.codecs["int4"], count, found.costs, on_links(2)).time_s == pytest.approx(
        want, rel=0.05
    )


def test_held_out_rows_are_not_seen() -> None:
    rows = made_rows([2])
    held_out = sorted({row["bytes"] for row in rows})[1:-1:2]
    for row in rows:
        if row["bytes"] in held_out:
            row["time_us"] *= 2
    found = fit(sort_rows(rows), on_links)
    assert len(found.held_out) == len(held_out) * len(CODECS)
    assert found.median_error == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda rows: rows[:4], "has 4 sizes"),
        (
            lambda rows: [{**rows[0], "transport": "mpi"}, *rows],
            "several transports in one measurement: mpi, tcp",
        ),
        (lambda rows: [{**row, "dtype": "half"} for row in rows], "knows float32 rows, not half"),
        (lambda rows: [{**rows[0], "time_us": 0.0}, *rows], "time_us is 0.0, expected a number of more than 0"),
        (lambda rows: [{**rows[0], "time_us": None}, *rows], "time_us is None"),
        (lambda rows: [{**rows[0], "time_us": math.nan}, *rows], "time_us is nan"),
        (lambda rows: [{**rows[0], "bytes": -4}, *rows], "bytes is -4, expected a number of 0 or more"),
        (lambda rows: [{**rows[0], "world_size": True}, *rows], "world_size is True"),
        (lambda rows: [{**rows[0], "rel_err": "x"}, *rows], "rel_err is 'x'"),
        (lambda rows: [{**rows[0], "codec": 5}, *rows], "codec is 5, expected a text"),
        (lambda rows: [{**rows[0], "codec": "int99"}, *rows], "codec 'int99' is unknown here"),
        (
            lambda rows: [{"codec": "int8", "encode_gbps": 0, "decode_accumulate_gbps": 1}, *rows],
            "encode_gbps is 0",
        ),
        (lambda rows: [{"latency_us": 3}, *rows], "neither of gcomm bench all_reduce nor of gcomm bench codec"),
        (lambda _: [], "no rows of gcomm bench all_reduce"),
    ],
)
def test_rows_that_cannot_be_used(change: Any, text: str) -> None:
    with pytest.raises(FitError, match=text):
        fit(sort_rows(change(made_rows([2]))), on_links)


# ---- the model -----------------------------------------------------------------------------------------------

counts = st.integers(1, 1 << 28)
worlds = st.sampled_from([2, 3, 4, 7, 16, 100, 1000])


@settings(max_examples=60, deadline=None)
@given(
    counts,
    worlds,
    st.sampled_from(CODECS),
    st.floats(0.1, 1),
    st.sampled_from(["wire_s", "message_s", "copy_s"]),
)
def test_what_costs_less_takes_less(count: int, ranks: int, one: Codec, part: float, what: str) -> None:
    cheaper = replace(COSTS, **{what: getattr(COSTS, what) * part})
    layout = on_links(ranks)
    assert predict(one, count, cheaper, layout).time_s <= predict(one, count, COSTS, layout).time_s * (
        1 + 1e-12
    )


@settings(max_examples=60, deadline=None)
@given(counts, worlds, st.sampled_from(CODECS))
def test_nothing_is_faster_than_its_parts(count: int, ranks: int, one: Codec) -> None:
    found = predict(one, count, COSTS, on_links(ranks))
    assert found.time_s >= max(found.processor_s, found.wire_s, found.latency_s) * (1 - 1e-9)
    assert found.time_s <= (found.processor_s + found.wire_s) * (1 + 1e-9) + 200 * found.latency_s


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 1 << 34), st.integers(2, MOST_RANKS))
def test_the_cut(count: int, ranks: int) -> None:
    length = shard(count, ranks)
    assert length % 4096 == 0
    assert length * ranks >= count
    assert 1 <= chunks(length * 0.5, ranks) <= max(33, length // 131072 + 2)


def test_a_slow_wire_costs_its_bytes() -> None:
    """64 MiB, 2 ranks, 1 Gbit/s: both phases' bytes, a chunk of filling and draining at most."""
    slow = replace(COSTS, wire_s=8e-9)
    for one in CODECS:
        bytes_sent = (16 << 20) * one.bytes_per_element
        time = predict(one, 16 << 20, slow, on_links(2)).time_s
        assert bytes_sent * 8e-9 <= time <= bytes_sent * 8e-9 * 1.06 + 1e-3
        assert predict(one, 16 << 20, slow, on_links(2)).bound == "wire"


def test_one_rank_and_one_host() -> None:
    assert predict(CODECS[1], 1 << 20, COSTS, Layout(1, 1, 2)).time_s == COSTS.call_s
    # Ranks of one host cross no link, but share its cores.
    here = Layout(4, 4, 2)
    assert predict(CODECS[1], 1 << 20, COSTS, here) == predict(
        CODECS[1], 1 << 20, replace(COSTS, wire_s=1.0), here
    )
    assert here.stretch == 2


def test_two_levels_send_less_between_hosts() -> None:
    layout = Layout(64, 8, 64)
    flat = predict(CODECS[2], 1 << 26, COSTS, layout)
    two = predict_two_level(CODECS[2], CODECS[0], 1 << 26, COSTS, layout)
    # A host's link carries 2 (M - 1) / M of one encoded tensor instead of 2 G (N - G) / N of it.
    assert two.wire_s == pytest.approx(flat.wire_s / 8, rel=0.02)
    assert two.time_s < flat.time_s
    one_host = Layout(8, 8, 64)
    assert predict_two_level(CODECS[2], CODECS[0], 1 << 20, COSTS, one_host) == predict(
        CODECS[2], 1 << 20, COSTS, one_host
    )


# ---- the command ---------------------------------------------------------------------------------------------


def test_command(rows_file: str, tmp_path: Path) -> None:
    words = [rows_file, "--measured-per-host", "1", "--ranks", f"2,64,{MOST_RANKS}", "-b", "64M"]
    plot = tmp_path / "plan.png"
    shown = plan(*words, "--per-host", "8", "--max-error", "0.05", "--plot", str(plot))
    assert shown.exit_code == 0, shown.output
    assert "held out at first, predicted within" in shown.output
    assert "two level" in shown.output
    assert "100,000 ranks, 64 MiB: " in shown.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    report = json.loads(plan(*words, "--json", "-").stdout)
    assert report["fit"]["held_out_median_error"] < 0.02
    row = next(row for row in report["predictions"] if (row["world_size"], row["codec"]) == (2, "nvfp4"))
    want = predict(CODECS[2], 16 << 20, COSTS, on_links(2)).time_s
    assert row["time_us"] == pytest.approx(want * 1e6, rel=0.03)
    assert row["bound"] == "wire"
    assert row["speedup"] == pytest.approx(4 / CODECS[2].bytes_per_element, rel=0.05)


def test_recommends_the_fastest_that_is_exact_enough(rows_file: str) -> None:
    for most, name in (("0", "none"), ("0.05", "fp8_e4m3"), ("0.2", "nvfp4")):
        words = [rows_file, "--measured-per-host", "1", "--ranks", "2", "--max-error", most, "--json", "-"]
        (best,) = json.loads(plan(*words).stdout)["recommended"]
        assert best["codec"] == name


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "give files of rows"),
        (["ROWS", "--ranks", "2,x"], "expected whole numbers"),
        (["ROWS", "--ranks", "100001", "--measured-per-host", "1"], "goes up to 100000"),
        (["ROWS", "--bandwidth", "fast"], "is no bandwidth"),
        (["ROWS", "--codec", "int2"], "not in the measurement, which has none, fp8_e4m3, nvfp4"),
        (["ROWS", "--per-host", "1", "--ranks", "8"], "give --bandwidth"),
        (["ROWS", "--max-error", "-1"], "--max-error"),
        (["ROWS", "-b", "4M", "-e", "1M"], "larger than the largest"),
        (["/nowhere.json"], "No such file"),
        ([__file__], "is not JSON"),
    ],
)
def test_arguments(rows_file: str, words: list[str], text: str) -> None:
    result = plan(*[rows_file if word == "ROWS" else word for word in words])
    assert result.exit_code == 2
    assert text in result.output


@pytest.mark.parametrize("words", [("--latency", "nan"), ("--latency", "inf"), ("--max-error", "nan")])
def test_amounts_that_are_none(words: tuple[str, str]) -> None:
    result = plan("rows.json", *words)
    assert result.exit_code == 2
    assert "expected a finite number" in result.output


def test_one_rank_is_faster_than_nothing(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps(made_rows([2])), encoding="utf-8")
    result = plan(str(rows), "--ranks", "1", "--json", "-")
    assert result.exit_code == 0, result.output
    for row in json.loads(result.stdout)["predictions"]:
        assert row["speedup"] is None
        assert row["speedup_over"] == {}
    assert "0.00x" not in plan(str(rows), "--ranks", "1").output


def test_a_plot_of_any_name(tmp_path: Path) -> None:
    rows, picture = tmp_path / "rows.json", tmp_path / "plot.txt"
    rows.write_text(json.dumps(made_rows([2])), encoding="utf-8")
    assert plan(str(rows), "--plot", str(picture)).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
