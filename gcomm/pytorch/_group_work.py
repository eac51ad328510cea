"""A collective of the backend's groups under way, as torch wants it."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..errors import GcommError
from ..work import Work

# A timeout that torch passes where none is given.
_NONE = datetime.timedelta(0)


def is_sum_or_avg(op: Any) -> bool:
    """Whether a ReduceOp is one that gcomm has."""
    # The operation's own ==: that of the constants, which `in` would ask, does not know it.
    return bool(op == dist.ReduceOp.SUM) or bool(op == dist.ReduceOp.AVG)


class GroupWork(dist.Work):
    """One torch work for several calls, of gcomm's and of the wrapped backend.

    ``finish`` runs once, when all of them have completed well and before anybody learns of it.
    """

    def __init__(
        self, parts: Sequence[Any], result: list[torch.Tensor], finish: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._parts = parts
        self._result = result
        self._finish = finish
        self._lock = threading.Lock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: datetime.timedelta = _NONE) -> bool:
        """Waits for all of it; raises what failed."""
        for part in self._parts:
            if isinstance(part, Work):
                part.wait(timeout if timeout > _NONE else None)
            else:
                part.wait(timeout)
        with self._lock:
            if self._finish is not None:
                self._finish()
                self._finish = None
        return True

    def synchronize(self) -> None:
        """The same, of works on streams."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether all of it has completed, well or not."""
        if not all(part.is_completed() for part in self._parts):
            return False
        self.exception()
        return True

    def is_success(self) -> bool:
        """Whether all of it has completed well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Any:
        """What failed, if anything that has completed did."""
        if all(part.is_completed() for part in self._parts):
            try:
                self.wait()
            except (GcommError, RuntimeError) as error:
                return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that are written."""
        return self._result

    def get_future(self) -> Any:
        """A torch future of the tensors that are written, which also C++ sees fail."""
        with self._lock:
            if self._future is not None:
                return self._future
            done: torch.futures.Future[None] = torch.futures.Future()
            # An exception that is *set* on a torch future is a value to C++ (DistributedDataParallel's
            # reducer, say); one that a callback raises is an error to both.
            self._future = done.then(self._outcome)
        left = len(self._parts)
        lock = threading.Lock()

        def one_done(*_: Any) -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                done.set_result(None)

        for part in self._parts:
            if isinstance(part, Work):
                part._when_done(one_done)
            else:
                part.get_future().then(one_done)
        return self._future

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        self.wait()
        return self._result
