"""How the ranks of a torch group meet to make a communicator, within a deadline.

They leave what they have to say in the group's store, under a prefix of gcomm's, and look for the others'. A
collective of the group itself could be neither timed nor interrupted, and would leave the group with half a
call.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import AbortedError, PeerLostError, TimeoutError

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.02
_OUTCOME = "outcome"

T = TypeVar("T")


def distributed() -> Any:
    """torch.distributed. As Any: torch's annotations don't say that the stores are public."""
    import torch.distributed as dist

    return dist


def group_store(group: Any) -> Any:
    """The store that the group's ranks met at, or None in a torch that doesn't tell.

    Not a clone of it, which would be a connection of its own: making one takes seconds now and then.
    """
    return group.get_group_store() if hasattr(group, "get_group_store") else None


class Deadline:
    """A point in time, and what it was when it was set."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then; not less than a millisecond, so that what is there already can still be taken."""
        return max(self._at - time.monotonic(), 0.001)

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self._at


def exchange(group: Any, mine: dict[str, Any], deadline: Deadline, verb: str) -> list[dict[str, Any]]:
    """What every rank of the group has to say, in rank order; plain JSON values."""
    # Of a group that torch is still making, too: its own functions do not know it yet.
    rank, size = group.rank(), group.size()
    store = group_store(group)
    if store is None:
        dist = distributed()
        everybody: list[Any] = [None] * size
        within(
            deadline,
            lambda: dist.all_gather_object(everybody, mine, group),
            f"{verb} on rank {rank}: the group's ranks did not exchange their addresses",
        )
        return everybody
    meeting = _Meeting(store, rank, size, verb)
    try:
        return meeting.hold(mine, deadline)
    except BaseException as error:
        meeting.leave(type(error).__name__)
        raise


class _Meeting:
    def __init__(self, store: Any, rank: int, size: int, verb: str) -> None:
        self._rank, self._size, self._verb = rank, size, verb
        try:
            # Counted in the store, by rank: all come to the same number as often as they come.
            number = store.add(f"gcomm/meetings/{rank}", 1)
        except RuntimeError as error:
            raise self._unreachable(error) from None
        self._store = distributed().PrefixStore(f"gcomm/meeting/{number}", store)

    def hold(self, mine: dict[str, Any], deadline: Deadline) -> list[dict[str, Any]]:
        keys = [str(rank) for rank in range(self._size)]
        try:
            self._store.set(str(self._rank), json.dumps(mine))
            pause = _FIRST_PAUSE_S
            while not self._store.check(keys):
                if self._store.check([_OUTCOME]) or deadline.passed:
                    break
                time.sleep(min(pause, deadline.left))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            missing = [at for at, key in enumerate(keys) if not self._store.check([key])]
            # Whatever the first to have done with waiting found holds for all.
            outcome = self._decide(None if not missing else "TimeoutError")
            if outcome is not None:
                self._raise_failed(*outcome, missing, deadline)
            return [json.loads(self._store.get(key)) for key in keys]
        except RuntimeError as error:
            raise self._unreachable(error) from None

    def leave(self, why: str) -> None:
        """Whoever comes later must not wait for a rank that has left."""
        with contextlib.suppress(RuntimeError):
            self._decide(why)

    def _decide(self, failure: str | None) -> tuple[int, str] | None:
        """Writes down how the meeting ended, unless it has; gives back how: who left and why, or None."""
        mine = None if failure is None else (self._rank, failure)
        outcome = json.loads(self._store.compare_set(_OUTCOME, "", json.dumps(mine)))
        return None if outcome is None else (outcome[0], outcome[1])

    def _raise_failed(self, rank: int, why: str, missing: list[int], deadline: Deadline) -> None:
        where = f"{self._verb} on rank {self._rank}"
        if rank != self._rank:
            raise AbortedError(
                f"{where}: rank {rank} gave up making the group's communicator ({why}); the next attempt is a "
                "new one",
                rank,
            )
        ranks = ("rank " if len(missing) == 1 else "ranks ") + ", ".join(map(str, missing))
        raise TimeoutError(
            f"{where}: within {deadline.seconds:g} s {ranks} did not come to make the group's communicator",
            missing[0],
        )

    def _unreachable(self, error: RuntimeError) -> PeerLostError:
        return PeerLostError(
            f"{self._verb} on rank {self._rank}: the group's store can't be reached; the process that has it "
            f"may have ended ({str(error).splitlines()[0]})"
        )


def within(deadline: Deadline, function: Callable[[], T], otherwise: str) -> T:
    """Runs what neither a deadline nor Ctrl-C ends, in a thread that is left behind if it takes too long."""
    result: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            result.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body, name="gcomm-connect", daemon=True)
    thread.start()
    thread.join(deadline.left)
    if failure:
        raise failure[0]
    if not result and thread.is_alive():
        raise TimeoutError(f"{otherwise} within {deadline.seconds:g} s")
    return result[0]
