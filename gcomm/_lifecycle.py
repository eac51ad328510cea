"""What happens to communicators when the interpreter ends, forks, or loses its last reference to them."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from . import _completion, _native
from .errors import GcommError

if TYPE_CHECKING:
    from .communicator import Communicator

# How long an ending process waits for its peers to finish what it has queued, before it aborts.
_GRACE_S = 5.0

_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


def register(communicator: Communicator) -> None:
    """Has it closed at the interpreter's end."""
    _live.add(communicator)


def _close(native: _native.Comm) -> None:
    with contextlib.suppress(GcommError):
        native.close()


def _close_or_abort(natives: list[_native.Comm]) -> None:
    """Closes them all side by side; aborts those that are still waiting for a peer after the grace."""
    closing = [(native, threading.Thread(target=_close, args=(native,), daemon=True)) for native in natives]
    for _, thread in closing:
        thread.start()
    deadline = time.monotonic() + _GRACE_S
    for _, thread in closing:
        thread.join(max(0.0, deadline - time.monotonic()))
    for native, thread in closing:
        if thread.is_alive():
            with contextlib.suppress(GcommError):
                native.abort("the process ends with calls that no peer has answered")
    for _, thread in closing:
        thread.join(_GRACE_S)


def _at_exit() -> None:
    natives = [communicator._native for communicator in list(_live) if communicator._native.here]
    if natives:
        _close_or_abort(natives)
    _completion.stop()
    _native.interpreter_ends()


def _after_fork_in_child() -> None:
    _native.after_fork_in_child()
    _completion.after_fork_in_child()
    _live.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
