"""One rank that ``gcomm.cli.launch`` has started: ``python -m gcomm.cli.rank DESCRIPTOR``, its job on stdin."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import TextIO

from gcomm.cli.launch import Message, describe, find_target
from gcomm.cli.world import open_world


def main(descriptor: int) -> int:
    """Run the job; what it emits goes to ``descriptor`` (none if negative), a line of JSON a message."""
    # Ctrl-C reaches the whole group of processes; the launcher ends its ranks itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = json.load(sys.stdin)
    _end_with(job["launcher"])
    stream: TextIO | None = os.fdopen(descriptor, "w", encoding="utf-8") if descriptor >= 0 else None

    def emit(message: Message) -> None:
        if stream is not None:
            stream.write(json.dumps(message) + "\n")
            stream.flush()

    try:
        with open_world(job["transport"], torch_group=job["torch_group"]) as world:
            find_target(job["target"])(world, job["config"], emit)
    except Exception as error:
        print(describe(int(os.environ["RANK"]), error), file=sys.stderr)
        return 1
    return 0


def _end_with(launcher: int) -> None:
    """Have the kernel end this process when its launcher ends, however it does (Linux)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != launcher:  # it has gone already
        sys.exit(1)


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    # After a failure the other ranks' connections may still be held by threads of torch's; do not wait for
    # them.
    os._exit(status) if status else sys.exit(0)
