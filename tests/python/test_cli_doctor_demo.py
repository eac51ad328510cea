"""``gcomm doctor`` and ``gcomm demo``."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import gcomm
from gcomm.cli import main


@pytest.mark.parametrize(("shm", "medium"), [(None, "through shared memory"), ("0", "through sockets")])
def test_doctor_reports_everything(shm: str | None, medium: str) -> None:
    result = CliRunner().invoke(
        main, ["doctor", "--json", "-"], env={"GCOMM_TIMEOUT": "77", "GCOMM_TCP_SHM": shm}
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["works"]
    assert {row["name"] for row in report["codecs"]} == {row.name for row in gcomm.codecs()}
    assert {"local", "tcp"} <= {row["name"] for row in report["transports"] if row["available"]}
    assert any(row["available"] for row in report["isas"])
    # What is missing says why.
    for row in (*report["isas"], *report["transports"], *report["codecs"]):
        assert row["available"] or row["reason"], row
    details = {row["name"]: row["detail"] for row in report["self_test"]}
    assert details["all_reduce between 2 tcp ranks"] == medium
    settings = {row["name"]: row["value"] for row in report["environment"]}
    assert settings["GCOMM_TIMEOUT"] == "77"
    assert settings["GCOMM_SOCKET_IFNAME"] is None
    assert report["versions"]["gcomm"] == gcomm.__version__


def test_absent_jax_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "jax" or name.startswith("gcomm.jax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"gcomm\.jax needs jax .*: pip install 'gcomm\[jax\]'"):
        importlib.import_module("gcomm.jax")
    version = metadata.version

    def installed(package: str) -> str:
        if package in ("jax", "jaxlib"):
            raise metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(metadata, "version", installed)
    row = json.loads(CliRunner().invoke(main, ["doctor", "--json", "-"]).stdout)["jax"]
    assert not row["available"]
    assert "pip install 'gcomm[jax]'" in row["remark"]


def test_doctor_for_people() -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.output
    for text in (
        "instruction sets",
        "nvfp4",
        "tcp",
        "GCOMM_ISA",
        "all_reduce between 2 local ranks",
        "works here",
    ):
        assert text in result.stdout


def test_doctor_sees_a_broken_core(monkeypatch: pytest.MonkeyPatch) -> None:
    original = gcomm.Codec.decode

    def decode(self: gcomm.Codec, data: Any, out: Any) -> Any:
        original(self, data, out)
        out[17] = 99.0
        return out

    monkeypatch.setattr(gcomm.Codec, "decode", decode)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "elements break the format's error bound" in result.stdout
    assert "does NOT work here" in result.stdout


def test_version_and_help_of_the_command() -> None:
    installed = [sys.executable, "-m", "gcomm.cli"]
    version = subprocess.run([*installed, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert gcomm.__version__ in version.stdout
    usage = subprocess.run([*installed, "bench", "-h"], capture_output=True, text=True, timeout=60, check=True)
    for name in ("all_reduce", "send_recv", "codec", "link"):
        assert name in usage.stdout


@pytest.mark.timeout(180)
def test_demo(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["demo", "--quick", "--codecs", "fp8_e4m3,hadamard+int4", "--output", str(tmp_path / "demo")]
    )
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "demo" / "demo.json").read_text())
    exact, fp8, int4 = rows
    assert [row["codec"] for row in rows] == ["fp32", "fp8_e4m3", "hadamard+int4"]
    for row in rows:
        assert row["ranks_identical"] is True
        assert row["train_curve"][-1] < row["train_curve"][0] - 0.3  # it learns
        assert abs(row["gap_percent"]) < 5
        assert row["step_ms"] > row["exchange_ms"] > 0
    assert exact["gap_percent"] == 0
    assert (
        exact["train_curve"][0] == fp8["train_curve"][0] == int4["train_curve"][0]
    )  # same weights, same batch
    assert exact["wire_bytes_per_step"] > 3 * fp8["wire_bytes_per_step"] > 4 * int4["wire_bytes_per_step"]
    assert (tmp_path / "demo" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert result.stdout.count("bit for bit") == 3
    assert "training 3 models side by side, 12 steps each" in result.stderr


def test_demo_repeats_exactly(tmp_path: Path) -> None:
    curves = []
    for number in range(2):
        folder = tmp_path / str(number)
        words = [
            "demo",
            "--quick",
            "--steps",
            "3",
            "--transport",
            "local",
            "--codecs",
            "nvfp4:rounding=stochastic",
        ]
        result = CliRunner().invoke(main, [*words, "--output", str(folder)])
        assert result.exit_code == 0, result.output
        rows = json.loads((folder / "demo.json").read_text())
        curves.append([(row["train_curve"], row["eval_loss"]) for row in rows])
    assert curves[0] == curves[1]


def test_demo_usage_errors() -> None:
    for words, message in (
        (["--codecs", "fp9"], "fp9"),
        (["--steps", "0"], "--steps"),
        (["--transport", "nccl"], "nccl"),
    ):
        result = CliRunner().invoke(main, ["demo", *words])
        assert result.exit_code == 2, result.output
        assert message in result.stderr
