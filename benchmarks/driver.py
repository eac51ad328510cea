"""Runs a case's command several times, judges its figures, keeps them with the command and the machine.

Everything is measured by programs that write JSON (mostly ``gcomm bench``), and what is compared is measured in
turn inside one run of such a program. A case takes a ratio from each run and reports the median over runs, so
that a disturbance has to last for most of the runs before it shows.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gcomm.cli.machine import machine, versions

Row = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NETLAB = "tools/netlab.sh"


class SkippedError(Exception):
    """A case cannot run here; the text says why."""


@dataclass(frozen=True)
class Target:
    """One figure that must be reached.

    Attributes
    ----------
    name:
        What is measured.
    figure:
        From the rows of one run.
    limit:
        What it must reach, or with ``at_most`` must not exceed.
    unit:
        ``"x"`` for ratios.
    """

    name: str
    figure: Callable[[Sequence[Row]], float]
    limit: float
    unit: str = "x"
    at_most: bool = False

    def met(self, value: float) -> bool:
        """Whether ``value`` is good enough."""
        return value <= self.limit if self.at_most else value >= self.limit


@dataclass(frozen=True)
class Network:
    """A small network of namespaces on this machine, each end shaped to ``rate``.

    ``start``: how netlab.sh starts the ranks, ``"run"`` or, under mpiexec, ``"mpi"``.
    """

    ranks: int
    rate: str
    start: str = "run"


@dataclass(frozen=True)
class Case:
    """One benchmark.

    Attributes
    ----------
    name, title:
        For the command line and for people.
    command:
        A program and its arguments; ``gcomm`` stands for the command line of this package, ``python`` for this
        interpreter. It is run with ``--json FILE`` added, and must write an array of rows.
    targets:
        What its rows must show.
    runs:
        How often it is run.
    network:
        Where the ranks live, if not on the loopback interface.
    settings:
        Environment variables, as they stand before a command in a shell.
    """

    name: str
    title: str
    command: str
    targets: tuple[Target, ...]
    runs: int = 3
    network: Network | None = None
    settings: str = ""

    @property
    def shown_command(self) -> str:
        """The command as a person would type it at the root of the repository."""
        command = f"{self.settings} {self.command} --json rows.json".strip()
        if self.network is None:
            return command
        net, ranks = NETLAB, self.network.ranks
        start = self.network.start
        return f"{net} up {ranks} {self.network.rate}; {net} {start} {ranks} {command}; {net} down {ranks}"


def run_case(case: Case, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a case, write ``benchmarks/results/NAME.json``, and return what was written.

    Raises
    ------
    SkippedError
        It cannot run here.
    subprocess.CalledProcessError
        Its program failed, for instance because a result was wrong.
    """
    load = os.getloadavg()[0]
    runs: list[list[Row]] = []
    with _network(case.network):
        for number in range(case.runs):
            say(f"{case.name}: run {number + 1} of {case.runs}")
            runs.append(_run_once(case))
    return keep(case, runs, load)


def keep(case: Case, runs: list[list[Row]], load: float) -> dict[str, Any]:
    """Judge the rows of each run, write ``benchmarks/results/NAME.json``, and return what was written."""
    targets = [_judge(target, runs) for target in case.targets]
    result = {
        "case": case.name,
        "title": case.title,
        "command": case.shown_command,
        "runs": len(runs),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": {**machine(), "load_before": round(load, 2)},
        "network": asdict(case.network) if case.network else None,
        "versions": versions(),
        "targets": targets,
        "met": all(target["met"] for target in targets),
        "rows": [{"run": number, **row} for number, rows in enumerate(runs) for row in rows],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{case.name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _judge(target: Target, runs: list[list[Row]]) -> dict[str, Any]:
    values = [target.figure(rows) for rows in runs]
    value = statistics.median(values)
    return {
        "name": target.name,
        "limit": target.limit,
        "at_most": target.at_most,
        "unit": target.unit,
        "value": value,
        "each_run": values,
        "met": target.met(value),
    }


def _run_once(case: Case) -> list[Row]:
    programs = {"gcomm": [sys.executable, "-m", "gcomm.cli"], "python": [sys.executable]}
    words = [part for word in shlex.split(case.command) for part in programs.get(word, [word])]
    if case.network is not None:
        words = [str(ROOT / NETLAB), case.network.start, str(case.network.ranks), *words]
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        finished = subprocess.run(
            [*words, "--json", str(rows)],
            cwd=ROOT,
            env={**os.environ, **dict(word.split("=", 1) for word in case.settings.split())},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if finished.returncode != 0:
            sys.stderr.write(finished.stdout.decode(errors="replace"))
            finished.check_returncode()
        loaded: list[Row] = json.loads(rows.read_text(encoding="utf-8"))
    return loaded


@contextlib.contextmanager
def _network(network: Network | None) -> Iterator[None]:
    if network is None:
        yield
        return
    if os.geteuid() != 0:
        raise SkippedError(f"{NETLAB} makes network namespaces, which needs root")
    netlab, ranks = str(ROOT / NETLAB), str(network.ranks)
    try:
        made = subprocess.run(
            [netlab, "up", ranks, network.rate], capture_output=True, text=True, check=False, cwd=ROOT
        )
        if made.returncode != 0:
            raise SkippedError(f"{NETLAB} up failed: {made.stderr.strip()}")
        yield
    finally:
        subprocess.run([netlab, "down", ranks], check=False, cwd=ROOT)


def stored_results() -> list[dict[str, Any]]:
    """All results in ``benchmarks/results``, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
