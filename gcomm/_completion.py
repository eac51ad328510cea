"""The threads that complete futures.

The core's threads never wait for the GIL: they queue what has completed, and a thread from here runs it. There
is always one more thread waiting than there are busy ones, so a callback that itself waits for a future holds
up nobody.
"""

from __future__ import annotations

import contextlib
import sys
import threading

from . import _native

_lock = threading.Lock()
_threads: set[threading.Thread] = set()


def ensure_thread() -> None:
    """Sees to it that somebody runs what completes."""
    if not _threads:
        with _lock:
            if not _threads:
                _start()


def _start() -> None:
    thread = threading.Thread(target=_run, name="gcomm-completions", daemon=True)
    thread.start()
    _threads.add(thread)


def _run() -> None:
    while True:
        function = _native.next_completion()
        if function is None:
            break
        with _lock:
            if _native.waiting_threads() == 0:
                # From Python 3.12 on an interpreter that ends starts no thread: then this one has to do.
                with contextlib.suppress(RuntimeError):
                    _start()
        try:
            function()
        except BaseException:
            # A callback's own mistake: futures report theirs to whoever asks.
            sys.excepthook(*sys.exc_info())
        del function
    with _lock:
        _threads.discard(threading.current_thread())


def stop() -> None:
    """Ends the threads, at the interpreter's end."""
    _native.stop_completions()
    for thread in list(_threads):
        thread.join(1.0)


def after_fork_in_child() -> None:
    """The child has none of the threads."""
    global _lock  # noqa: PLW0603 (it may have been held in the parent)
    _lock = threading.Lock()
    _threads.clear()
