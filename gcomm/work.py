"""A call in flight."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _completion, _native
from ._arguments import parse_timeout
from ._arrays import Where
from .errors import GcommError, InvalidArgumentError, TimeoutError, UnsupportedError

if TYPE_CHECKING:
    from ._call import Host

__all__ = ["Work"]


class Work:
    """An asynchronous call.

    The arrays that it uses stay alive until it completes, whatever becomes of this object.

    An output that is not contiguous gets its values when :meth:`wait` returns, :meth:`is_completed` says True
    or the future is done.

    Of a call with a controller, which decides in the order of these calls, :meth:`wait` alone releases the
    result.
    """

    __slots__ = (
        "__weakref__",
        "_comm",
        "_controlled",
        "_error",
        "_finishers",
        "_for_torch",
        "_future",
        "_lock",
        "_native",
        "_result",
        "_verb",
    )

    def __init__(
        self,
        native: _native.Work,
        comm: Host,
        verb: str,
        result: Any,
        *,
        finishers: Sequence[Callable[[], None]],
        for_torch: bool,
        controlled: bool = False,
    ) -> None:
        self._native = native
        self._comm = comm
        self._verb = verb
        self._result = result
        self._finishers = list(finishers)
        self._controlled = controlled
        self._for_torch = for_torch
        self._lock = threading.Lock()
        self._future: Any = None
        self._error: GcommError | None = None

    def wait(self, timeout: float | datetime.timedelta | None = None) -> bool:
        """Waits until the call has completed; raises what it failed with.

        Ctrl-C interrupts a wait. The call goes on then; ``Communicator.abort()`` gives it up.

        Parameters
        ----------
        timeout : float or timedelta, optional
            Seconds from now; until the call's own deadline if not given. When they pass, the communicator is
            closed on this rank and the others get an AbortedError.

        Returns
        -------
        bool
            True.

        Raises
        ------
        gcomm.errors.TimeoutError
            The time passed, here or in the call itself.
        gcomm.errors.GcommError
            Whatever else the call failed with; or that a result could not be copied back to its array.
        """
        seconds = parse_timeout(timeout, Where("wait", "timeout", self._comm._rank))
        if self._error is not None:
            raise self._error
        if not self._native.wait(seconds):
            self._error = TimeoutError(
                f"{self._verb} on rank {self._comm._rank} did not complete within {seconds:g} s of waiting; "
                "the communicator is closed"
            )
            self._comm.abort(f"rank {self._comm._rank} gave up waiting for {self._verb} after {seconds:g} s")
            raise self._error
        self._finish()
        return True

    def is_completed(self) -> bool:
        """Whether the call has completed, well or not. Never waits."""
        if not self._native.is_completed():
            return False
        if self._finishers and not self._controlled:
            # What failed is for wait() to tell.
            with contextlib.suppress(GcommError):
                self._native.wait(0.0)
                self._finish()
        return True

    def get_future(self) -> Any:
        """A future that gets the result, or the exception.

        Returns
        -------
        torch.futures.Future or concurrent.futures.Future
            torch's where the call's arrays are torch tensors. The result is the array that was written (a list
            of them for all_reduce_coalesced; None for send and barrier). Its callbacks run in a thread of
            gcomm's own, so that nothing that they do holds up a transfer. It can't be cancelled.

        Raises
        ------
        gcomm.errors.UnsupportedError
            The call has a controller: futures are done in no certain order, and ranks would decide otherwise.
        """
        if self._controlled:
            raise UnsupportedError(
                f"get_future of {self._verb} on rank {self._comm._rank}: not with a controller, whose "
                "decisions depend on the order of calls; wait() for the work"
            )
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = future = _new_future(self._for_torch)
        self._when_done(self._resolve)
        return future

    def _when_done(self, function: Callable[[], object]) -> None:
        """Has a function run in a thread of gcomm's own once the call has completed, well or not."""
        _completion.ensure_thread()
        self._native.on_complete(function)

    @property
    def stats(self) -> Mapping[str, Any]:
        """What the call took. Only of a call that has completed: an InvalidArgumentError before.

        raw_bytes (what the same call sends uncompressed) and wire_bytes (sent by this rank, everything
        counted), encode_s, comm_s, decode_s (seconds in the codec, waiting for the transport, and in the codec
        again with the sum), total_s (from the call to its completion), path ("raw" or "direct"), nonfinite
        (whether some rank's input held a NaN or an Inf).
        """
        if not self._native.is_completed():
            raise InvalidArgumentError(
                f"stats of {self._verb} on rank {self._comm._rank}: the call has not completed; wait() for it",
                self._comm._rank,
            )
        return self._native.stats()

    def _finish(self) -> None:
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                # Until all have been: a Ctrl-C in between leaves the rest to the next wait.
                while self._finishers:
                    self._finishers[0]()
                    del self._finishers[0]
            except GcommError as error:
                # A controller's: it refused the norms.
                self._error = error
                raise
            except Exception as error:
                # The array was made read-only or resized meanwhile, say.
                self._error = GcommError(
                    f"{self._verb} on rank {self._comm._rank}: the call completed, but its result could not be "
                    f"copied back to the array: {error}"
                )
                raise self._error from error

    def _resolve(self) -> None:
        try:
            self.wait()
        except Exception as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(self._result)


def _new_future(for_torch: bool) -> Any:
    if for_torch:
        return sys.modules["torch"].futures.Future()
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    # The call is under way: cancel() answers no.
    future.set_running_or_notify_cancel()
    return future
