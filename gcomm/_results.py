"""What transports written in Python share: results as numbers, and a failure as the bindings take it."""

from __future__ import annotations

from typing import NamedTuple

# gcomm_result; the numbers are pinned in gcomm.h.
OK = 0
TIMEOUT = 3
PEER_LOST = 4
ABORTED = 7
INTERNAL = 11

# receives, lane, peer, address, bytes
Op = tuple[bool, int, int, int, int]


class Failure(NamedTuple):
    """Why a transport failed."""

    result: int
    text: str
    rank: int  # at fault, or -1
