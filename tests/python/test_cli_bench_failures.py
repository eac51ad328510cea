"""``gcomm bench``: wrong usage, ranks that fail, interruptions, output that can't be written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_cli_bench import gcomm_cli

import gcomm


def test_a_rank_that_fails_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(tensor: Any, op: str, comm: gcomm.Communicator, **kwargs: Any) -> Any:
        if comm.rank == 1:
            raise gcomm.errors.GcommError("the cable is gone")
        return original(tensor, op, comm, **kwargs)

    original = gcomm.all_reduce
    monkeypatch.setattr(gcomm, "all_reduce", fail)
    result = gcomm_cli("bench", "all_reduce", "--transport", "local", "-b", "64K")
    assert result.exit_code == 1
    assert "rank 1: GcommError: the cable is gone" in result.stderr
    assert "gcomm: rank 0 ended with exit code 1; rank 1 ended with exit code 1" in result.stderr


def start_bench(*words: str) -> subprocess.Popen[str]:
    """A sweep that would take hours, once it has shown its first row."""
    sweep = ["bench", "all_reduce", "-b", "4K", "-e", "64M", "-i", "4K", "-n", "5", "--codec", "fp8_e4m3"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gcomm.cli", *sweep, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and what it starts inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    assert process.stdout is not None
    while (line := process.stdout.readline()).startswith("#"):
        pass
    assert "fp8_e4m3" in line, process.communicate()
    return process


def children(process: subprocess.Popen[str]) -> list[int]:
    return [
        int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]


def test_a_rank_that_is_killed_ends_the_command() -> None:
    process = start_bench("--nproc", "3")
    os.kill(children(process)[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "gcomm: rank 1 was ended by SIGKILL" in errors
    for survivor in (0, 2):
        assert f"rank {survivor}: PeerLostError: " in errors


@pytest.mark.parametrize("transport", ["tcp", "local"])
def test_ctrl_c_is_clean(transport: str) -> None:
    process = start_bench("--nproc", "2", "--transport", transport)
    ranks = children(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "gcomm: interrupted\n"
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_their_launcher(number: signal.Signals) -> None:
    process = start_bench("--nproc", "2")
    ranks = children(process)
    process.send_signal(number)
    process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("transport", ["tcp", "local"])
def test_output_that_is_cut_off_ends_the_command(transport: str) -> None:
    """As by ``| head -1``."""
    process = start_bench("--nproc", "2", "--transport", transport)
    ranks = children(process)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(30) != 0
    assert errors == ""
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("name", ["all_reduce", "codec", "link"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    name: str, option: str, tmp_path: Path
) -> None:
    for target, message in (
        (tmp_path / "none" / "x.png", f"there is no folder {tmp_path / 'none'}"),
        (tmp_path, "is a folder"),
    ):
        result = gcomm_cli("bench", name, option, str(target))
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.stderr.replace("\n", " ").split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["all_reduce", "--codec", "fp9"], "fp9"),
        (["all_reduce", "--codec", ","], "names no codec"),
        (["all_reduce", "-b", "12Q"], "not a size"),
        (["all_reduce", "-b", "2M", "-e", "1M"], "larger than the largest"),
        (["all_reduce", "-d", "int8"], "sums float, half, bfloat16, not int8"),
        (["all_gather", "-d", "int8", "--codec", "int8"], "travels as it is"),
        (["barrier", "--codec", "fp8_e4m3"], "no data"),
        (["barrier", "--plot", "barrier.png"], "nothing for --plot to draw"),
        (["all_reduce", "--codec", "int8,gift+nvfp4"], "--codec gift+nvfp4: there is no error bound"),
        (["codec", "--codec", "gift+nvfp4"], "--codec gift+nvfp4: there is no error bound"),
        (["send_recv", "--nproc", "1"], "at least 2 ranks"),
        (["all_reduce", "--nproc", "0"], "--nproc"),
        (["all_reduce", "--transport", "nccl"], "transport nccl is not available: "),
        (["all_reduce", "--transport", "local", "--baseline", "torch"], "ranks that are processes"),
        (["all_reduce", "-m", "500"], "would overflow"),
        (["all_reduce", "--check", "0"], "--check"),
        (["codec", "-b", "2"], "at least 4"),
        (["codec", "--isa", "sse9"], "known are"),
        (["codec", "--codec", "none"], "nothing to encode"),
        (["link", "--nproc", "1"], "two ends"),
        (["link", "-b", "0"], "cannot start at 0"),
        (["nothing"], "No such command"),
    ],
)
def test_usage_errors(words: list[str], message: str) -> None:
    result = gcomm_cli("bench", *words)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


def test_a_rank_of_a_launcher_says_in_one_line_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    result = gcomm_cli("bench", "all_reduce", "-b", "64K")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "rank 0: InvalidArgumentError: MASTER_ADDR: not set",
        "gcomm: rank 0 ended with exit code 1",
    ]


def test_nproc_under_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = gcomm_cli("bench", "all_reduce", "--nproc", "2")
    assert result.exit_code == 2
    assert "a launcher already has" in " ".join(result.stderr.split())
