"""The engine's schedule, step by step, of one rank among equals; compiled by numba."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit
def pipeline(steps, work, wire, latency_s):  # type: ignore[no-untyped-def]
    """Seconds until the last chunk is decoded (docs/engine.md, "The pipeline of an all_reduce").

    In step t a rank encodes and posts chunk t, reduces and posts chunk t - 1, and decodes chunk t - 2. The
    processor and the wire each do one thing at a time; what a rank waits for its peers post when it posts the
    same.

    Parameters
    ----------
    steps : int
        Chunks of a shard.
    work : (float, float, float)
        Processor time to encode a chunk, to reduce and to decode one, copies and messages included.
    wire : (float, float)
        Time that a rank's link is busy with one chunk of each phase.
    latency_s : float
        From a message's last byte on the link to its arrival.
    """
    encode_s, reduce_s, decode_s = work
    first_s, second_s = wire
    processor = 0.0
    link = 0.0
    first = np.zeros(steps)
    second = np.zeros(steps)
    for t in range(steps + 2):
        if t < steps:
            processor += encode_s
            link = max(link, processor) + first_s
            first[t] = link + latency_s
        if 1 <= t <= steps:
            processor = max(processor, first[t - 1]) + reduce_s
            link = max(link, processor) + second_s
            second[t - 1] = link + latency_s
        if t >= 2:
            processor = max(processor, second[t - 2]) + decode_s
    return processor
