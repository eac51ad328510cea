"""Real rank processes, and ranks as threads, for tests.

Every helper calls ``fn(rank, size, *args)`` (``run_local``: ``fn(comm, *args)``) on every rank and gives back
the results in rank order. ``fn`` must be importable: a function at the top level of a test module.

* ``rank_pool(n)``: n processes with an initialised gloo group, kept for the whole test session. The choice for
  most tests with torch. A test that ends its processes or destroys the default group uses ``run_ranks``.
* ``run_ranks(fn, n, *args)``: n fresh processes with a gloo group (about 0.1 s: they are forked from a server
  that has torch loaded); ``start_ranks`` does not wait for them, for tests that kill or stop ranks.
* ``run_env(fn, n, *args)``: n fresh processes with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT but no group.
* programs.py has ``run_script(text, n)``: n interpreters that run a program.
* ``run_local(fn, n, *args)``: n threads over ``gcomm.Communicator.local(n)``.
* ``run_over(transport, n, rank_pool, fn, *args)``: ``fn(comm, *args)`` over any transport.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

DEFAULT_TIMEOUT = 60.0
HOST = "127.0.0.1"

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["numpy", "torch", "torch.distributed", "pytest", "gcomm"])


@dataclass
class Outcome:
    """What became of one rank: a value, an exception, or an exit code (None: still busy at the time limit)."""

    rank: int
    value: Any = None
    error: str | None = None
    exception: BaseException | None = None
    exitcode: int | None = None
    finished: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.finished and self.error is None


class RankError(AssertionError):
    """Some rank raised, died or ran out of time. ``outcomes`` has one entry a rank."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)
        lines = []
        for outcome in self.outcomes:
            if outcome.error is not None:
                lines.append(f"rank {outcome.rank} raised:\n{outcome.error}")
            elif not outcome.finished:
                ended = (
                    "did not finish in time" if outcome.exitcode is None else f"ended with {outcome.exitcode}"
                )
                lines.append(f"rank {outcome.rank} {ended}")
        super().__init__("\n".join(lines))


def free_port() -> int:
    """A TCP port of the loopback interface that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def rank_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """The variables that a launcher sets."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
    }


# ---- what runs in a rank ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Setup:
    rank: int
    size: int
    port: int
    backend: str | None
    store: str
    env: Mapping[str, str] = field(default_factory=dict)
    output: str | None = None


def _dump(status: str, value: Any) -> bytes:
    if status == "ok":
        return pickle.dumps((status, value, None))
    text = "".join(traceback.format_exception(value))
    try:
        payload = pickle.dumps((status, text, value))
        pickle.loads(payload)
    except Exception:
        payload = pickle.dumps((status, text, None))
    return payload


def _serve(connection: Connection, setup: _Setup) -> None:
    """Runs every (fn, args) that arrives, until the other end closes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(rank_environment(setup.rank, setup.size, setup.port))
    os.environ.update(setup.env)
    if setup.output is not None:
        descriptor = os.open(setup.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    if setup.backend is not None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group(
            setup.backend, init_method=f"file://{setup.store}", rank=setup.rank, world_size=setup.size
        )
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            break
        try:
            fn, args = pickle.loads(message)
            reply = _dump("ok", fn(setup.rank, setup.size, *args))
        except BaseException as error:
            reply = _dump("error", error)
        try:
            connection.send_bytes(reply)
        except OSError:
            break
    if setup.backend is not None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


# ---- processes ----------------------------------------------------------------------------------------------


class Ranks:
    """n rank processes. ``call`` starts a function on all of them, ``join`` collects what came of it."""

    def __init__(
        self,
        n: int,
        *,
        backend: str | None = "gloo",
        env: Mapping[str, str] | None = None,
        output: str | None = None,
    ) -> None:
        self.size = n
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="gcomm-ranks-")
        self._connections: list[Connection] = []
        self._processes = []
        self._called_at = 0.0
        self.broken = False
        for rank in range(n):
            here, there = _context.Pipe()
            setup = _Setup(
                rank, n, self.port, backend, str(Path(self._folder.name) / "store"), dict(env or {}), output
            )
            process = _context.Process(target=_serve, args=(there, setup))
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        return [process.pid or -1 for process in self._processes]

    def kill(self, rank: int, sig: int = signal.SIGKILL) -> None:
        """Sends a signal to one rank (SIGKILL ends it, SIGSTOP freezes it, SIGINT is Ctrl-C)."""
        os.kill(self.pids[rank], sig)

    def call(self, fn: Callable[..., Any], *args: Any) -> None:
        """Starts ``fn(rank, size, *args)`` on every rank."""
        message = pickle.dumps((fn, args))
        self._called_at = time.monotonic()
        for connection in self._connections:
            try:
                connection.send_bytes(message)
            except OSError:
                self.broken = True

    def join(self, timeout: float = DEFAULT_TIMEOUT, *, only: Sequence[int] | None = None) -> list[Outcome]:
        """Outcomes of the last ``call``, in rank order; ranks that are still busy at the limit are killed.

        ``only``: wait for these ranks and leave the others alone (they are reported as not finished).
        """
        deadline = time.monotonic() + timeout
        outcomes = [Outcome(rank) for rank in range(self.size)]
        waiting = {self._connections[rank]: rank for rank in (range(self.size) if only is None else only)}
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                outcome = outcomes[waiting.pop(connection)]
                outcome.seconds = time.monotonic() - self._called_at
                try:
                    status, value, exception = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    self.broken = True
                    process = self._processes[outcome.rank]
                    process.join(5)
                    outcome.exitcode = process.exitcode
                    continue
                outcome.finished = True
                if status == "ok":
                    outcome.value = value
                else:
                    self.broken = True
                    outcome.error, outcome.exception = value, exception
        if waiting:
            self.broken = True
            for rank in waiting.values():
                self._processes[rank].kill()
        return outcomes

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float = DEFAULT_TIMEOUT) -> list[Any]:
        """``call`` and ``join``; results in rank order, RankError unless every rank returned."""
        self.call(fn, *args)
        outcomes = self.join(timeout)
        if not all(outcome.ok for outcome in outcomes):
            raise RankError(outcomes)
        return [outcome.value for outcome in outcomes]

    def close(self, timeout: float = 10.0) -> list[int | None]:
        """Lets the ranks end (kills them at the limit); their exit codes."""
        for connection in self._connections:
            connection.close()
        deadline = time.monotonic() + timeout
        for process in self._processes:
            process.join(0.0 if self.broken else max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join(5)
        self._folder.cleanup()
        return [process.exitcode for process in self._processes]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_ranks(
    fn: Callable[..., Any],
    n: int,
    *args: Any,
    backend: str | None = "gloo",
    env: Mapping[str, str] | None = None,
    output: str | None = None,
) -> Ranks:
    """Starts ``fn(rank, size, *args)`` in n fresh processes and returns at once. Use it in a ``with``."""
    ranks = Ranks(n, backend=backend, env=env, output=output)
    ranks.call(fn, *args)
    return ranks


def run_ranks(
    fn: Callable[..., Any],
    n: int,
    *args: Any,
    backend: str | None = "gloo",
    timeout: float = DEFAULT_TIMEOUT,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Runs ``fn(rank, size, *args)`` in n fresh processes with a torch group; results in rank order."""
    with Ranks(n, backend=backend, env=env) as ranks:
        return ranks.run(fn, *args, timeout=timeout)


def run_env(
    fn: Callable[..., Any],
    n: int,
    *args: Any,
    timeout: float = DEFAULT_TIMEOUT,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """As ``run_ranks``, with a launcher's variables only: ``fn`` calls ``gcomm.Communicator.from_env()``."""
    return run_ranks(fn, n, *args, backend=None, timeout=timeout, env=env)


class RankPools:
    """Pools by size, made when first asked for and made anew after a failure."""

    def __init__(self) -> None:
        self._pools: dict[int, Ranks] = {}

    def __call__(self, n: int) -> Ranks:
        pool = self._pools.get(n)
        if pool is None or pool.broken:
            if pool is not None:
                pool.close()
            pool = self._pools[n] = Ranks(n)
        return pool

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()


@contextlib.contextmanager
def rank_pools() -> Iterator[RankPools]:
    pools = RankPools()
    try:
        yield pools
    finally:
        pools.close()


# ---- threads ------------------------------------------------------------------------------------------------


def run_local(fn: Callable[..., Any], n: int, *args: Any, timeout: float = DEFAULT_TIMEOUT) -> list[Any]:
    """Runs ``fn(comm, *args)`` in n threads, one a rank of ``Communicator.local(n)``; results in rank order."""
    import gcomm

    communicators = gcomm.Communicator.local(n)
    outcomes = [Outcome(rank) for rank in range(n)]

    def body(outcome: Outcome) -> None:
        started = time.monotonic()
        try:
            outcome.value = fn(communicators[outcome.rank], *args)
        except BaseException as error:
            outcome.error, outcome.exception = "".join(traceback.format_exception(error)), error
        outcome.seconds = time.monotonic() - started
        outcome.finished = True

    threads = [threading.Thread(target=body, args=(outcome,), daemon=True) for outcome in outcomes]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for communicator in communicators:
        if all(outcome.ok for outcome in outcomes):
            communicator.close()
        else:
            communicator.abort()
    if not all(outcome.ok for outcome in outcomes):
        raise RankError(outcomes)
    return [outcome.value for outcome in outcomes]


# ---- either -------------------------------------------------------------------------------------------------

TRANSPORTS = ("local", "tcp", "torch")


def _with_communicator(_rank: int, _size: int, transport: str, fn: Callable[..., Any], args: Any) -> Any:
    import gcomm

    with gcomm.Communicator.from_torch(None, transport=transport) as comm:
        return fn(comm, *args)


def run_over(transport: str, n: int, pools: RankPools, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """Runs ``fn(comm, *args)`` on n ranks of a transport: threads for "local", else processes of a pool."""
    if transport == "local":
        return run_local(fn, n, *args)
    return pools(n).run(_with_communicator, transport, fn, args)
