"""Interpreters that end, ``with`` statements that are left, with calls under way: what peers get to see."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
from programs import run_script
from ranks import run_env

from gcomm import Communicator

ENV = "import time, numpy as np, gcomm\ncomm = gcomm.Communicator.from_env()\nx = np.ones(300000, np.float32)\n"
# What Python does from 3.12 on: once exit functions run, no thread is started.
NO_THREADS = (
    "import atexit, threading\n"
    'def refuse(self): raise RuntimeError("can\'t create new thread at interpreter shutdown")\n'
    "atexit.register(lambda: setattr(threading.Thread, 'start', refuse))\n"
)
QUEUED = (
    "comm.barrier()\n"
    "if comm.rank == 0:\n"
    "    work = comm.all_reduce(x, async_op=True)\n"
    "    LATER"
    "else:\n"
    "    time.sleep(0.7)\n"
    "    comm.all_reduce(x, timeout=10)\n"
    "    print('complete', flush=True)\n"
)
ENDINGS = {
    "no threads": NO_THREADS + QUEUED.replace("LATER", "pass\n"),
    "no threads, a future": NO_THREADS + QUEUED.replace("LATER", "future = work.get_future()\n"),
    "all dropped": QUEUED.replace("LATER", "del work, comm\n"),
}


@pytest.mark.parametrize("body", list(ENDINGS.values()), ids=list(ENDINGS))
def test_calls_under_way_get_their_grace(body: str) -> None:
    first, second = run_script(ENV + body, 2, timeout=30)
    assert (first.returncode, second.returncode) == (0, 0), (first, second)
    assert second.stdout == "complete\n", second
    assert "Error" not in first.stderr


def test_leaving_with_sys_exit_0_is_no_failure() -> None:
    script = ENV + (
        "import sys\n"
        "with comm:\n"
        "    work = comm.all_reduce(x, async_op=True)\n"
        "    if comm.rank == 0: sys.exit(0)\n"
        "    time.sleep(0.3)\n"
        "    work.wait()\n"
        "    print('complete')\n"
    )
    first, second = run_script(script, 2, timeout=30)
    assert (first.returncode, second.returncode, second.stdout) == (0, 0, "complete\n"), (first, second)


def _in_a_child(rank: int, size: int) -> int:
    """A child's own exception is not hidden by what it can't do with its parent's communicator."""
    comm = Communicator.from_env()
    work = comm.all_reduce(np.ones(100_000, np.float32), async_op=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with comm:
                comm.close()
                raise KeyError("mine")
        except KeyError:
            status = 7
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert work is not None
    work.wait()
    comm.barrier()
    comm.close()
    return os.waitstatus_to_exitcode(status)


def test_a_forked_child_leaves_its_parents_communicator() -> None:
    assert run_env(_in_a_child, 2) == [7, 7]


class _MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error", [ValueError("\udcff"), ValueError("a\0b"), _MuteError()], ids=["half", "nul", "mute"]
)
def test_the_exception_that_leaves_is_the_programs_own(error: Exception) -> None:
    first, second = Communicator.local(2)
    with pytest.raises(type(error)) as caught, first:
        raise error
    assert caught.value is error
    with pytest.raises(Exception, match=f"rank 0 left with {type(error).__name__}"):
        second.barrier()
    second.close()


def test_an_exception_after_close_is_the_programs_own() -> None:
    (comm,) = Communicator.local(1)
    comm.close()
    with pytest.raises(ValueError, match="mine"), comm:
        raise ValueError("mine")


def test_abort_takes_any_text() -> None:
    for text in ("a\0b", "\udcff"):
        first, second = Communicator.local(2)
        first.abort(text)
        with pytest.raises(Exception, match=r"a\\x00b|\\udcff"):
            second.barrier()


def _stopped(rank: int, size: int, victim: int) -> Any:
    """A rank that is stopped until all deadlines are over learns from the others that it was itself."""
    import signal

    comm = Communicator.from_env()
    x = np.ones(300_000, np.float32)
    comm.barrier()
    if rank == victim:
        parent = os.getpid()
        if os.fork() == 0:
            time.sleep(0.2)
            os.kill(parent, signal.SIGSTOP)
            time.sleep(1.3)
            os.kill(parent, signal.SIGCONT)
            os._exit(0)
    started = time.monotonic()
    try:
        while time.monotonic() - started < 10:
            comm.all_reduce(x, codec="int4", timeout=0.5)
    except Exception as error:
        return type(error).__name__, getattr(error, "rank", None), str(error)
    finally:
        comm.close()
    return None


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_was_stopped_blames_no_other(victim: int) -> None:
    for kind, culprit, text in run_env(_stopped, 3, victim):
        assert kind == "TimeoutError", text
        assert culprit == victim, text
