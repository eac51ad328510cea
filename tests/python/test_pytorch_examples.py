"""The examples train, on the backend that torch finds by its entry point, and on gloo with the hooks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import run_script

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STEPS = 21


def installed(folder: Path) -> dict[str, str]:
    """An environment in which importlib finds this source tree's entry points, as after an installation."""
    info = folder / "gcomm-0.1.0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: gcomm\nVersion: 0.1.0\n")
    project = (ROOT / "pyproject.toml").read_text()
    section = re.search(r'\[project\.entry-points\."torch\.backends"\]\ngcomm = "(.+)"', project)
    assert section is not None
    info.joinpath("entry_points.txt").write_text(f"[torch.backends]\ngcomm = {section[1]}\n")
    parts = [str(folder), *(part for part in sys.path if part)]
    return {"PYTHONPATH": os.pathsep.join(parts), "OMP_NUM_THREADS": "1"}


def program(name: str, *arguments: str) -> str:
    argv = [name, *arguments, "--steps", str(STEPS)]
    return (
        f"import sys, runpy; sys.argv = {argv!r}; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"import torch; torch.set_num_threads(1)\n"
        f"runpy.run_path({str(EXAMPLES / name)!r}, run_name='__main__')\n"
    )


def check(results: list[subprocess.CompletedProcess[str]]) -> None:
    assert [each.returncode for each in results] == [0, 0], results
    losses = [float(each) for each in re.findall(r"loss (\S+)", results[0].stdout)]
    assert len(losses) == 3, results
    assert losses[0] > 5, losses
    assert losses[-1] < 3.6, losses
    assert results[1].stdout == ""
    # The backend would say so if it had compressed nothing.
    assert "was compressed" not in results[0].stderr, results


def test_unmodified_by_the_entry_point(tmp_path: Path) -> None:
    env = {**installed(tmp_path), "GCOMM_CODEC": "int4"}
    check(run_script(program("unmodified_ddp.py"), 2, env=env, preload=False))


@pytest.mark.parametrize(
    "arguments",
    [("--backend", "gcomm"), ("--backend", "gloo", "--codec", "gift+nvfp4:geometry=factored")],
)
def test_fsdp2_with_the_backend_and_with_a_codec(arguments: tuple[str, ...]) -> None:
    register = "import gcomm._torch_backend as known; known.register()\n"
    check(run_script(register + program("fsdp2.py", *arguments), 2, env={"OMP_NUM_THREADS": "1"}))


def test_ddp_with_a_hook() -> None:
    first, second = run_script(program("ddp.py", "--codec", "gift+nvfp4"), 2, env={"OMP_NUM_THREADS": "1"})
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    training, evaluation = (float(each) for each in re.findall(r"loss (\S+)", first.stdout))
    assert training < 4, first.stdout
    assert evaluation < 3.6, first.stdout
    assert re.search(r"parameter +codec +calls", first.stdout)
    assert second.stdout == ""
