"""Programs as ranks, for tests of how interpreters end.

``run_script(text, n)``: n interpreters that run a program with a launcher's variables and end as interpreters
do. They are forked from one that has torch loaded, or, with ``preload=False``, plain ``python -c``.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ranks import DEFAULT_TIMEOUT, free_port, rank_environment

# An interpreter that has torch loaded and forks. A child runs a program and falls off the end of this text: it
# ends as any interpreter does.
_FORKER = """
import json, os, sys, time
import torch, torch.distributed
for line in sys.stdin:
    order = json.loads(line)
    if "text" in order:
        child = os.fork()
        if child == 0:
            os.environ.update(order["env"])
            for number, path in ((1, order["out"]), (2, order["err"])):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            break
        print(child, flush=True)
    else:
        done, status = os.waitpid(order["wait"], os.WNOHANG)
        print(os.waitstatus_to_exitcode(status) if done else "", flush=True)
else:
    sys.exit(0)
text = order["text"]
del child, line, number, order, path
exec(compile(text, "<program>", "exec"))
"""


class _Forker:
    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def _ask(self, order: Mapping[str, Any]) -> str:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _FORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=_program_environment(),
            )
            atexit.register(self._process.kill)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def start(self, text: str, env: Mapping[str, str], out: Path, err: Path) -> int:
        return int(self._ask({"text": text, "env": dict(env), "out": str(out), "err": str(err)}))

    def poll(self, pid: int) -> int | None:
        code = self._ask({"wait": pid})
        return int(code) if code else None


_forker = _Forker()


def _program_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


def run_script(
    text: str,
    n: int,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    env: Mapping[str, str] | None = None,
    preload: bool = True,
) -> list[subprocess.CompletedProcess[str]]:
    """Runs a program's text in n interpreters; exit codes and output in rank order.

    A rank that is still there at the time limit is killed and has return code -9.
    """
    port = free_port()
    environments = [{**rank_environment(rank, n, port), **(env or {})} for rank in range(n)]
    deadline = time.monotonic() + timeout
    if preload:
        return _run_forked(text, environments, deadline)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", text],
            env={**_program_environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments
    ]
    results = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        results.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return results


def _run_forked(
    text: str, environments: Sequence[Mapping[str, str]], deadline: float
) -> list[subprocess.CompletedProcess[str]]:
    results = []
    with tempfile.TemporaryDirectory(prefix="gcomm-script-") as folder:
        started = []
        for rank, environment in enumerate(environments):
            out, err = (Path(folder) / f"{name}{rank}" for name in ("out", "err"))
            started.append((_forker.start(text, environment, out, err), out, err))
        for pid, out, err in started:
            while (code := _forker.poll(pid)) is None:
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
            results.append(subprocess.CompletedProcess([text], code, out.read_text(), err.read_text()))
    return results
