"""What happens to communicators when the interpreter ends, forks, or loses its last reference to them."""

from __future__ import annotations

import atexit
import os
import weakref

from . import _completion, _native

# How long an ending process waits for its peers to finish what it has queued, before it aborts.
_GRACE_S = 5.0

# The extension's objects: those of Python's class may be gone while a call is under way.
_live: weakref.WeakSet[_native.Comm] = weakref.WeakSet()


def register(native: _native.Comm) -> None:
    """Has it closed at the interpreter's end."""
    _live.add(native)


def close_soon(native: _native.Comm) -> None:
    """Closes one that its peers may not answer any more, as at the interpreter's end."""
    if native.here:
        _native.close_all([native], _GRACE_S, "the group was destroyed with calls that no peer has answered")


def _at_exit() -> None:
    try:
        natives = [native for native in list(_live) if native.here]
        if natives:
            _native.close_all(natives, _GRACE_S, "the process ends with calls that no peer has answered")
    finally:
        try:
            _completion.stop()
        finally:
            _native.interpreter_ends()


def _after_fork_in_child() -> None:
    _native.after_fork_in_child()
    _completion.after_fork_in_child()
    _live.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
