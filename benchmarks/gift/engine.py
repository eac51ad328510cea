"""Two ranks of one process, each with a codec object of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gcomm
from benchmarks.gift.figures import EXACT

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class Ranks:
    """Reduces what its ranks would hold, by the library's own collective over its local transport.

    Parameters
    ----------
    codec_text:
        The codec, or ``"fp32"`` for exact sums.
    count:
        The number of ranks.
    """

    def __init__(self, codec_text: str, count: int = 2) -> None:
        self.comms = gcomm.Communicator.local(count)
        self.codecs = [None if codec_text == EXACT else gcomm.codec(codec_text) for _ in range(count)]
        self.wire_bytes = 0.0

    def all_reduce(self, tensors: Sequence[Sequence[Any]], keys: Sequence[str], op: str = "sum") -> None:
        """In place; ``tensors`` by rank and key. wire_bytes is then what a rank sent, in the mean."""
        works = [
            gcomm.all_reduce_coalesced(list(mine), op, comm, codec=codec, keys=list(keys), async_op=True)
            for mine, comm, codec in zip(tensors, self.comms, self.codecs, strict=True)
        ]
        sent = []
        for work in works:
            assert work is not None
            work.wait()
            sent.append(int(work.stats["wire_bytes"]))
        self.wire_bytes = float(np.mean(sent))

    def report(self) -> list[dict[str, Any]]:
        """What gift chose on rank 0."""
        return [] if self.codecs[0] is None else self.codecs[0].report()

    def close(self) -> None:
        """All ranks."""
        for comm in self.comms:
            comm.close()


def estimate(
    codec_text: str, gradients: Sequence[F64], reference: F32, warm: int = 2
) -> tuple[F64, float, dict[str, Any]]:
    """The all-reduced sum of ``gradients``, what an element of it costs, and gift's own report.

    Parameters
    ----------
    codec_text:
        Any codec.
    gradients:
        Matrices (m, n), one a rank.
    reference:
        The reduced gradient (m, n) of an earlier step; it is reduced first, an equal part from each rank.
    warm:
        How often the reference is reduced. Gift's first call has no basis yet and goes direct, so the basis of
        the second comes from a coarser sum than any later one. More than 1 refreshes after each call, as the
        codec would have done by then in a long run.

    Returns
    -------
    sum:
        float64 (m, n).
    bits:
        Wire bits an element and direction of the last call, headers and scales included.
    report:
        Empty for other codecs.
    """
    refresh = ":refresh=1" if codec_text.startswith("gift+") and warm > 1 else ""
    ranks, count = Ranks(codec_text + refresh, len(gradients)), len(gradients)
    try:
        for _ in range(warm):
            ranks.all_reduce([[reference / np.float32(count)] for _ in range(count)], ["matrix"])
        tensors = [np.ascontiguousarray(gradient, np.float32) for gradient in gradients]
        ranks.all_reduce([[tensor] for tensor in tensors], ["matrix"])
        if not all(np.array_equal(tensor.view(np.uint32), tensors[0].view(np.uint32)) for tensor in tensors):
            raise RuntimeError(f"{codec_text}: the ranks hold different sums")
        # Each of two phases moves (N - 1) / N of the tensor out of each rank.
        elements = 2 * (count - 1) / count * tensors[0].size
        (report,) = ranks.report() or [{}]
        return tensors[0].astype(np.float64), 8 * ranks.wire_bytes / elements, report
    finally:
        ranks.close()
