"""Starts the ranks of a command: as processes, as threads, or not at all under torchrun.

A *target* is a function ``target(world, config, emit)`` that runs on every rank. ``emit`` takes a small mapping
that can be written as JSON; what rank 0 emits reaches ``on_message`` in the process that the user started, in
order. What the other ranks emit is dropped.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import click

import gcomm
from gcomm.cli.world import World, free_port, launched_rank, open_world

Message = dict[str, Any]
Emit = Callable[[Message], None]
Target = Callable[[World, Message, Emit], None]

_GRACE_S = 10.0  # for the other ranks to report, after one has failed


class RankFailedError(Exception):
    """Ranks ended with errors, which they have already told on stderr themselves. Takes exit codes by rank."""

    def __init__(self, codes: Mapping[int, int]) -> None:
        # A rank that was killed could say nothing itself, and is why the others failed: it comes first.
        ranks = sorted(codes, key=lambda rank: (codes[rank] > 0, rank))
        super().__init__("; ".join(f"rank {rank} {_ended(codes[rank])}" for rank in ranks))


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class _Listener:
    """Takes what rank 0 emits, until whoever reads this program's output has gone (``| head``)."""

    def __init__(self, on_message: Emit) -> None:
        self._on_message = on_message
        self.gone: BrokenPipeError | None = None

    def __call__(self, message: Message) -> None:
        if self.gone is None:
            try:
                self._on_message(message)
            except BrokenPipeError as error:
                self.gone = error

    def check(self) -> None:
        """Has the main thread end the command, as click does quietly."""
        if self.gone is not None:
            raise self.gone


@dataclass(frozen=True)
class Ranks:
    """The ranks that a command wants.

    Attributes
    ----------
    transport:
        ``"tcp"``, ``"torch"``, ``"mpi"`` or ``"local"``.
    nproc:
        How many to start; 0 where a launcher has started them.
    torch_group:
        They need torch's default group, too.
    """

    transport: str
    nproc: int
    torch_group: bool = False


def run_ranks(target: str, config: Message, ranks: Ranks, on_message: Emit) -> None:
    """Run ``target`` (``"module:function"``) on every rank and return when all have ended.

    Under a launcher this process is one rank. Otherwise the ranks are started: threads for transport
    ``"local"``, else processes.

    Raises
    ------
    RankFailedError
        A rank failed; the others were ended.
    BrokenPipeError
        ``on_message`` did, as nobody reads what it writes; the ranks were ended.
    """
    if ranks.transport == "local":
        _run_threads(target, config, ranks.nproc, _Listener(on_message))
    elif ranks.nproc == 0:
        _run_as_rank(target, config, ranks, on_message)
    else:
        _run_processes(target, config, ranks, _Listener(on_message))


def _run_as_rank(target: str, config: Message, ranks: Ranks, on_message: Emit) -> None:
    rank = launched_rank()
    try:
        with open_world(ranks.transport, torch_group=ranks.torch_group) as world:
            find_target(target)(world, config, on_message if world.rank == 0 else _drop)
    except gcomm.errors.GcommError as error:
        print(describe(rank, error), file=sys.stderr)
        raise RankFailedError({rank: 1}) from None


def find_target(name: str) -> Target:
    """The function that ``"module:function"`` names."""
    module, _, function = name.partition(":")
    return cast(Target, getattr(importlib.import_module(module), function))


def describe(rank: int, error: BaseException) -> str:
    """What a rank says of the error that ends it: one line for what gcomm raises, else the traceback."""
    if isinstance(error, gcomm.errors.GcommError):
        return f"rank {rank}: {type(error).__name__}: {error}"
    text = "".join(traceback.format_exception(error)).rstrip()
    return "\n".join(f"rank {rank}: {line}" for line in text.splitlines())


def _drop(_message: Message) -> None:
    pass


# ---- threads -------------------------------------------------------------------------------------------------


def _run_threads(target: str, config: Message, nproc: int, on_message: _Listener) -> None:
    function = find_target(target)
    comms = gcomm.Communicator.local(nproc)
    failed: list[int] = []
    interrupted = threading.Event()

    def run(rank: int) -> None:
        try:
            function(World(comms[rank], False), config, on_message if rank == 0 else _drop)
        except Exception as error:
            if interrupted.is_set():
                return
            failed.append(rank)
            print(describe(rank, error), file=sys.stderr)
            comms[rank].abort(f"rank {rank}: {type(error).__name__}: {error}")

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(nproc)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # a join with a time limit lets Ctrl-C through
                thread.join(0.5)
                on_message.check()
        on_message.check()
    except (KeyboardInterrupt, BrokenPipeError):
        interrupted.set()
        for comm in comms:
            comm.abort("interrupted")
        for thread in threads:
            thread.join(_GRACE_S)
        raise
    if failed:
        raise RankFailedError(dict.fromkeys(failed, 1))
    for comm in comms:
        comm.close()


def run_under_mpiexec(nproc: int) -> int:
    """Run this command again, as nproc ranks of MPI's; its exit code."""
    mpiexec = shutil.which("mpiexec", path=f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}")
    if mpiexec is None:
        raise click.UsageError(
            "--transport mpi: there is no mpiexec here (pip install 'gcomm[mpi]' brings one)"
        )
    words = list(sys.argv[1:])
    for i, word in enumerate(words):
        if word == "--nproc":
            del words[i : i + 2]
            break
        if word.startswith("--nproc="):
            del words[i]
            break
    return subprocess.call(
        [mpiexec, "-n", str(nproc), sys.executable, "-m", "gcomm.cli", *words],
        env={"OMP_NUM_THREADS": "1", **os.environ},
    )


# ---- processes -----------------------------------------------------------------------------------------------


def _run_processes(target: str, config: Message, ranks: Ranks, on_message: _Listener) -> None:
    reading, writing = os.pipe()
    job = json.dumps(
        {
            "target": target,
            "config": config,
            "transport": ranks.transport,
            "torch_group": ranks.torch_group,
            "launcher": os.getpid(),
        }
    )
    environment = {
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **_inherited(),
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks.nproc):
            pipe = (writing,) if rank == 0 else ()
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "gcomm.cli.rank", str(writing if rank == 0 else -1)],
                    env={
                        **environment,
                        "RANK": str(rank),
                        "WORLD_SIZE": str(ranks.nproc),
                        "LOCAL_RANK": str(rank),
                    },
                    stdin=subprocess.PIPE,
                    pass_fds=pipe,
                )
            )
        for process in processes:
            _hand_over(process, job.encode())
        os.close(writing)
        writing = -1
        reader = threading.Thread(target=_read_messages, args=(reading, on_message), daemon=True)
        reader.start()
        _wait_for_all(processes, on_message)
        reader.join()
        on_message.check()
    finally:
        _end_all(processes)
        if writing >= 0:
            os.close(writing)


def _hand_over(process: subprocess.Popen[bytes], job: bytes) -> None:
    """Give a rank its job by stdin: a long sweep does not fit on a command line."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:  # one that has died already is reported later
        process.stdin.write(job)


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT")}


def _read_messages(descriptor: int, on_message: Emit) -> None:
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        for line in stream:
            on_message(json.loads(line))


def _wait_for_all(processes: list[subprocess.Popen[bytes]], listener: _Listener) -> None:
    """Return when all have ended well; if one has not, raise once the others had time to report."""
    give_up: float | None = None
    while True:
        codes = [process.poll() for process in processes]
        failed = {rank: code for rank, code in enumerate(codes) if code}
        if failed and give_up is None:
            give_up = time.monotonic() + _GRACE_S
        if None not in codes or (give_up is not None and time.monotonic() > give_up):
            break
        listener.check()
        time.sleep(0.02)
    if failed:
        raise RankFailedError(failed)


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends what still runs: politely, then not."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + 3.0
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
