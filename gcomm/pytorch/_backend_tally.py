"""What became of the reductions of the backend's groups."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections import Counter

# So many reductions without a single one that qualifies, and the user is told.
_PATIENCE = 100


class Tally:
    """What became of a group's reductions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.compressed: Counter[str] = Counter()  # by verb
        self.exact: Counter[str] = Counter()  # by reason
        self.exact_bytes = 0

    def add(self, verb: str, reason: str | None, nbytes: int) -> None:
        with self._lock:
            if reason is None:
                self.compressed[verb] += 1
            else:
                self.exact[reason] += 1
                self.exact_bytes += nbytes


class _Watch:
    """Warns, once a process, where nothing was compressed."""

    def __init__(self) -> None:
        self._idle: Counter[str] = Counter()
        self._settled = False

    def saw(self, reason: str | None) -> None:
        if self._settled:
            return
        if reason is None:
            self._settled = True
            return
        self._idle[reason] += 1
        if self._idle.total() >= _PATIENCE:
            self.tell()

    def tell(self) -> None:
        if self._settled or not self._idle:
            return
        self._settled = True
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self._idle.most_common())
        warnings.warn(
            f'backend "gcomm": none of {self._idle.total()} reductions so far was compressed ({reasons}); see '
            "gcomm.pytorch.backend_stats()",
            stacklevel=2,
        )


watch = _Watch()
atexit.register(watch.tell)
