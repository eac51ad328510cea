"""``gcomm bench``: rows, tables, verification and exit codes, over every transport."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import gcomm
from gcomm.cli import main
from gcomm.cli.collectives import COLLECTIVES

COLLECTIVE_KEYS = {
    "collective", "transport", "world_size", "codec", "dtype", "bytes", "count", "time_us", "time_us_min",
    "time_us_max", "algbw", "busbw", "wire_bytes", "raw_bytes", "rel_err", "wrong",
}  # fmt: skip
CODEC_KEYS = {"codec", "isa", "bytes", "encode_gbps", "decode_gbps", "decode_accumulate_gbps", "memcpy_gbps"}
CODECS = "none,fp8_e4m3,nvfp4"


def gcomm_cli(*words: str) -> Result:
    """The command in this process; ranks may still be processes of their own."""
    return CliRunner().invoke(main, list(words))


def rows_of(*words: str) -> list[dict[str, Any]]:
    result = gcomm_cli(*words, "--json", "-")
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def check_rows(rows: list[dict[str, Any]], name: str, nproc: int, transport: str) -> None:
    for row in rows:
        assert set(row) == COLLECTIVE_KEYS
        assert (row["collective"], row["world_size"], row["transport"]) == (name, nproc, transport)
        assert row["wrong"] == 0
        assert 0 < row["time_us_min"] <= row["time_us"] <= row["time_us_max"]
        assert row["busbw"] == pytest.approx(row["algbw"] * COLLECTIVES[name].factor(nproc))
        assert row["algbw"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3)
        assert row["wire_bytes"] > 0
        if row["codec"] == "none" and not COLLECTIVES[name].reduces:
            assert row["rel_err"] == 0


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_every_collective(name: str, transport: str, nproc: int) -> None:
    codecs = "none" if name == "barrier" else CODECS
    words = ["bench", name, "--transport", transport, "--nproc", str(nproc), "--codec", codecs]
    rows = rows_of(*words, "-b", "12K", "-e", "300K", "-f", "25", "-n", "3", "-w", "1")
    check_rows(rows, name, nproc, transport)
    assert [row["codec"] for row in rows] == codecs.split(",") * (1 if name == "barrier" else 2)
    if name != "barrier":
        largest = {row["codec"]: row for row in rows[-3:]}
        assert largest["fp8_e4m3"]["raw_bytes"] == largest["none"]["raw_bytes"]
        assert largest["fp8_e4m3"]["wire_bytes"] < 0.3 * largest["none"]["wire_bytes"]
        assert largest["nvfp4"]["rel_err"] > largest["fp8_e4m3"]["rel_err"] > largest["none"]["rel_err"]


@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_every_collective_over_torch_and_beside_torch(name: str) -> None:
    codec = "none" if name == "barrier" else "fp8_e4m3"
    words = ["bench", name, "--transport", "torch", "--codec", codec, "--baseline", "torch"]
    ours, baseline = rows_of(*words, "-b", "300K", "-n", "3", "-w", "1")
    check_rows([ours], name, 2, "torch")
    assert (ours["codec"], baseline["codec"], baseline["wrong"]) == (codec, "baseline:torch", 0)
    if name != "barrier":
        check_rows([baseline], name, 2, "gloo")


@pytest.mark.parametrize(("shm", "words"), [("1", "transport tcp (shm), "), ("0", "transport tcp, ")])
def test_the_table_says_what_carries_the_bytes(shm: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCOMM_TCP_SHM", shm)
    result = gcomm_cli("bench", "barrier", "-n", "1", "-w", "0")
    assert result.exit_code == 0, result.output
    assert words in result.stdout.splitlines()[0]


def test_baseline_beside_tcp() -> None:
    ours, baseline = rows_of(
        "bench", "all_reduce", "--nproc", "3", "--codec", "nvfp4", "--baseline", "torch", "-b", "1M"
    )
    check_rows([ours], "all_reduce", 3, "tcp")
    check_rows([baseline], "all_reduce", 3, "gloo")
    assert baseline["wire_bytes"] > 7 * ours["wire_bytes"]


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_average_of_16_bit_types(dtype: str) -> None:
    words = [
        "--transport",
        "local",
        "--nproc",
        "3",
        "--codec",
        f"{CODECS},hadamard+int4",
        "-b",
        "64K",
        "-n",
        "2",
    ]
    for name in ("all_reduce", "reduce_scatter"):
        for row in rows_of("bench", name, *words, "-o", "avg", "-d", dtype):
            assert row["wrong"] == 0
            assert row["dtype"] == dtype


@pytest.mark.parametrize("dtype", ["int8", "int64", "double"])
def test_other_types_move_exactly(dtype: str) -> None:
    for name in ("all_gather", "all_to_all", "broadcast", "send_recv"):
        (row,) = rows_of("bench", name, "--transport", "local", "-d", dtype, "-b", "64K", "-n", "2")
        assert (row["codec"], row["wrong"]) == ("none", 0)


@pytest.mark.parametrize(
    "spec", ["fp8_e4m3:ef=1", "int4:rounding=stochastic", "mxfp8:min_bytes=0", "hadamard+int2"]
)
def test_codec_options(spec: str) -> None:
    for size in ("4", "96K"):
        (row,) = rows_of(
            "bench", "all_reduce", "--transport", "local", "--codec", spec, "-b", size, "-n", "2", "-c", "3"
        )
        assert row["wrong"] == 0


def test_error_feedback_of_several_sizes() -> None:
    """A residual is of one size: a sweep needs a key for each."""
    words = ("bench", "all_reduce", "--transport", "local", "--codec", "int4:ef=1", "-n", "2")
    rows = rows_of(*words, "-b", "64K", "-e", "256K")
    assert [(row["bytes"], row["wrong"]) for row in rows] == [(64 << 10, 0), (256 << 10, 0)]


def test_small_and_odd_sizes() -> None:
    rows = rows_of(
        "bench",
        "all_reduce",
        "--transport",
        "local",
        "--nproc",
        "3",
        "-b",
        "0",
        "-e",
        "28",
        "-i",
        "4",
        "-n",
        "2",
    )
    assert [row["count"] for row in rows[::2]] == list(range(8))
    assert not any(row["wrong"] for row in rows)


def test_table_has_the_columns_of_nccl_tests() -> None:
    result = gcomm_cli("bench", "all_reduce", "--transport", "local", "-b", "4K", "-n", "2", "--extremes")
    assert result.exit_code == 0, result.output
    header = result.stdout.splitlines()[1].lstrip("#").split()
    wanted = "size count type redop time algbw busbw #wrong min max codec wire ratio rel_err"
    assert header == wanted.split()
    assert all(len(line.split()) == len(header) for line in result.stdout.splitlines()[3:])


def test_json_file_and_plot(tmp_path: Path) -> None:
    rows_file, plot = tmp_path / "rows.json", tmp_path / "plot.png"
    result = gcomm_cli(
        *("bench", "all_reduce", "--transport", "local", "-b", "4K", "-e", "64K", "-n", "2"),
        *("--json", str(rows_file), "--plot", str(plot)),
    )
    assert result.exit_code == 0, result.output
    assert len(json.loads(rows_file.read_text())) == 6
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_torchrun() -> None:
    words = [
        "-m",
        "gcomm.cli",
        "bench",
        "all_reduce",
        "--codec",
        "fp8_e4m3",
        "-b",
        "64K",
        "-n",
        "2",
        "--json",
        "-",
    ]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run([*launch, *words], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)
    check_rows([row], "all_reduce", 2, "tcp")


# ---- results that are wrong ---------------------------------------------------------------------------------


class DamagedWork:
    """A work whose result is damaged when it completes."""

    def __init__(self, work: gcomm.Work, damage: Callable[[], None]) -> None:
        self._work, self._damage = work, damage

    def wait(self) -> None:
        self._work.wait()
        self._damage()

    @property
    def stats(self) -> Mapping[str, Any]:
        return self._work.stats


def corrupted(
    monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[Any, gcomm.Communicator], None]
) -> None:
    """Lets a verb's result be damaged before anybody sees it."""
    original = getattr(gcomm, name)

    def verb(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        comm = next(arg for arg in (*args, kwargs.get("group")) if isinstance(arg, gcomm.Communicator))
        work = original(tensor, *args, **kwargs)
        if tensor.dtype != np.float32:
            return work
        if work is None:
            return damage(tensor, comm)
        return DamagedWork(work, lambda: damage(tensor, comm))

    monkeypatch.setattr(gcomm, name, verb)


def wrong_rows(name: str) -> tuple[Result, list[dict[str, Any]]]:
    result = gcomm_cli(
        "bench", name, "--transport", "local", "--codec", CODECS, "-b", "64K", "-n", "2", "--json", "-"
    )
    return result, json.loads(result.stdout)


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("all_reduce", "all_reduce"),
        ("reduce_scatter", "reduce_scatter_tensor"),
        ("all_gather", "all_gather_into_tensor"),
        ("all_to_all", "all_to_all_single"),
        ("broadcast", "broadcast"),
        ("send_recv", "recv"),
    ],
)
def test_one_corrupted_element_is_counted(monkeypatch: pytest.MonkeyPatch, name: str, verb: str) -> None:
    def flip(array: Any, _comm: gcomm.Communicator) -> None:
        where = int(np.argmax(np.abs(array)))
        array[where] = -array[where]

    corrupted(monkeypatch, verb, flip)
    result, rows = wrong_rows(name)
    assert result.exit_code == 1
    assert "are wrong" in result.stderr
    # One element in each of two verified calls, on each rank that verifies it.
    assert all(2 <= row["wrong"] <= 4 for row in rows), rows


def test_ranks_that_differ_within_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def nudge(array: Any, comm: gcomm.Communicator) -> None:
        if comm.rank == 1:
            array[5] = np.nextafter(array[5], np.float32(np.inf))

    corrupted(monkeypatch, "all_reduce", nudge)
    result, rows = wrong_rows("all_reduce")
    assert result.exit_code == 1
    assert [row["wrong"] for row in rows] == [2, 2, 2]


# ---- codec and link -----------------------------------------------------------------------------------------


def test_codec_rows(tmp_path: Path) -> None:
    plot = tmp_path / "codec.png"
    rows = rows_of("bench", "codec", "-b", "1M", "-n", "2", "--plot", str(plot))
    assert [row["codec"] for row in rows] == [
        *(row.name for row in gcomm.codecs()),
        "hadamard+int8",
        "hadamard+int4",
    ]
    for row in rows:
        assert set(row) == CODEC_KEYS
        assert row["bytes"] == 1 << 20
        assert all(row[key] > 0 for key in row if key.endswith("_gbps"))
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_codec_on_every_isa() -> None:
    available = [row.name for row in gcomm.isas() if row.available]
    rows = rows_of("bench", "codec", "-b", "64K", "-n", "1", "--codec", "int8,nvfp4", "--isa", "all")
    assert [(row["codec"], row["isa"]) for row in rows] == [
        (c, isa) for c in ("int8", "nvfp4") for isa in available
    ]


def test_codec_that_decodes_wrongly_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = gcomm.Codec.decode

    def decode(self: gcomm.Codec, data: Any, out: Any) -> Any:
        original(self, data, out)
        out[100] += 1.0
        return out

    monkeypatch.setattr(gcomm.Codec, "decode", decode)
    result = gcomm_cli("bench", "codec", "-b", "64K", "-n", "1", "--codec", "int8")
    assert result.exit_code == 1
    assert "1 elements break their format's bound (int8)" in result.stderr


@pytest.mark.parametrize("transport", ["tcp", "local", "torch"])
def test_link_rows(transport: str, tmp_path: Path) -> None:
    plot = tmp_path / "link.png"
    words = ["bench", "link", "--transport", transport, "--nproc", "3", "-n", "4", "-e", "2M", "-f", "512"]
    rows = rows_of(*words, "--plot", str(plot))
    assert [(row["initiator"], row["peer"]) for row in rows[::3]] == [(0, 1), (0, 2), (1, 2)]
    assert [row["bytes"] for row in rows[:3]] == [8, 4096, 2 << 20]
    for row in rows:
        assert 0 < row["latency_us_min"] <= row["latency_us"] <= row["latency_us_max"]
        assert row["one_way_gbps"] > 0
        assert row["bidirectional_gbps"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")
