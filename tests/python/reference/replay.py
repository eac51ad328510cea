"""What each collective must give, bit for bit: the direct two-phase algorithm replayed with codecs.

Inputs and results are arrays of float32, float16, or uint16 (bf16 bits); ``dtype`` names them "float32",
"float16" and "bfloat16". Encoding and decoding is the reference's unless a caller hands in something else with
the same two methods, such as the library's own codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .encoder import ReferenceCodec, apply_policy, beyond_to_inf, from_f32, to_f32
from .spec import parse

F32 = NDArray[np.float32]
Array = NDArray[np.generic]

TILE = 4096
SUM_SOURCE = -1
EXACT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class RangeCodec(Protocol):
    """What a replay needs of a codec."""

    def encode(
        self, x: Any, *, key: str, call: int, source: int, element: int, residual: F32 | None, is_sum: bool
    ) -> bytes: ...

    def decode(self, data: bytes, count: int) -> F32: ...


def dtype_of(x: Array) -> str:
    """The name of an array's element type."""
    return {"float32": "float32", "float16": "float16", "uint16": "bfloat16"}[x.dtype.name]


def round_up(count: int, multiple: int) -> int:
    """The next multiple at or above count."""
    return (count + multiple - 1) // multiple * multiple


def shards(count: int, ranks: int) -> list[slice]:
    """Shard s is [s L, min((s + 1) L, n)), L a multiple of a tile."""
    length = round_up(round_up(count, ranks) // ranks, TILE)
    return [slice(min(s * length, count), min((s + 1) * length, count)) for s in range(ranks)]


def takes_raw_path(text: str, ranks: int, count: int, dtype: str, verb: str = "all_reduce") -> bool:
    """Whether a tensor is sent unencoded: from what all ranks share, and nothing else.

    count: of the tensor; of a shard for reduce_scatter, of the part for one peer for the verbs that move.
    """
    codec = ReferenceCodec(text)
    if codec.spec.min_bytes == 0:
        return False
    size = count * (4 if dtype == "float32" else 2)
    if verb == "all_reduce":
        # Unencoded, a rank sends everything to each peer; else one shard to each, and its own shard to each.
        encoded = sum(codec.wire_bytes(shard.stop - shard.start) for shard in shards(count, ranks))
        saves = ranks * size >= 2 * encoded
    else:
        saves = size > codec.wire_bytes(count)
    if ranks == 1 or not saves:
        return True
    if codec.spec.min_bytes is not None:
        return size * (ranks if verb == "reduce_scatter" else 1) < codec.spec.min_bytes
    return size * (ranks - 1) <= 32768


def rank_sum(parts: Sequence[F32], op: str, dtype: str) -> F32:
    """Sum in rank order in fp32, the first one starts it; divided for "avg"; Inf beyond dtype."""
    with np.errstate(all="ignore"):
        total = parts[0].copy()
        for part in parts[1:]:
            total = total + part
        if op == "avg":
            total = total / np.float32(len(parts))
        return beyond_to_inf(total, dtype)


def raw_sum(inputs: Sequence[Array], op: str, *, nonfinite: str = "propagate") -> Array:
    """The raw path: exact inputs, summed in rank order, rounded to their dtype."""
    dtype = dtype_of(inputs[0])
    values = [to_f32(x) for x in inputs]
    if nonfinite == "zero":
        values = [np.where(np.isfinite(v), v, np.float32(0)).astype(np.float32) for v in values]
    return from_f32(rank_sum(values, op, dtype), dtype, saturate=False)


def _decoded(codec: RangeCodec, x: Array, residual: F32 | None = None, **position: Any) -> F32:
    if len(x) == 0:
        return np.empty(0, np.float32)
    data = codec.encode(x, residual=residual, is_sum=position["source"] == SUM_SOURCE, **position)
    return codec.decode(data, len(x))


def all_reduce(
    inputs: Sequence[Array],
    text: str | None,
    op: str = "sum",
    *,
    key: str = "",
    call: int = 0,
    residuals: Sequence[F32] | None = None,
    codec: RangeCodec | None = None,
) -> Array:
    """The direct path.

    Parameters
    ----------
    inputs : sequence of arrays, shape (n,)
        One a rank.
    text : str or None
        Codec text; None is the exact format of the dtype.
    op : str
        "sum" or "avg".
    key, call
        The tensor's key and the key's call counter.
    residuals : sequence of float32 arrays, shape (n,), optional
        One a rank, updated: outside the rank's shard of what it sent, inside of the sum that it owns.
    codec : optional
        In place of the reference's.

    Returns
    -------
    array, shape (n,)
        What every rank ends with.
    """
    dtype = dtype_of(inputs[0])
    text = EXACT[dtype] if text is None else text
    spec = parse(text)
    codec = ReferenceCodec(text) if codec is None else codec
    out = np.empty_like(inputs[0])
    for owner, shard in enumerate(shards(len(out), len(inputs))):
        where: dict[str, Any] = {"key": key, "call": call, "element": shard.start}
        parts = []
        for rank, x in enumerate(inputs):
            if rank == owner:
                parts.append(apply_policy(to_f32(x[shard]), spec))
            else:
                left = None if residuals is None else residuals[rank][shard]
                parts.append(_decoded(codec, x[shard], left, source=rank, **where))
        total = rank_sum(parts, op, dtype)
        left = None if residuals is None else residuals[owner][shard]
        total = _decoded(codec, total, left, source=SUM_SOURCE, **where)
        out[shard] = from_f32(total, dtype, saturate=True)
    return out


def reduce_scatter(
    inputs: Sequence[Array],
    text: str | None,
    op: str = "sum",
    *,
    key: str = "",
    call: int = 0,
    residuals: Sequence[F32] | None = None,
    codec: RangeCodec | None = None,
) -> list[Array]:
    """Each rank's shard: arrivals decoded, the own part exact, the sum not encoded again."""
    dtype = dtype_of(inputs[0])
    text = EXACT[dtype] if text is None else text
    spec = parse(text)
    codec = ReferenceCodec(text) if codec is None else codec
    ranks = len(inputs)
    count = len(inputs[0]) // ranks
    results = []
    for owner in range(ranks):
        shard = slice(owner * count, (owner + 1) * count)
        where: dict[str, Any] = {"key": key, "call": call, "element": owner * round_up(count, TILE)}
        parts = []
        for rank, x in enumerate(inputs):
            if rank == owner:
                parts.append(apply_policy(to_f32(x[shard]), spec))
            else:
                left = None if residuals is None else residuals[rank][shard]
                parts.append(_decoded(codec, x[shard], left, source=rank, **where))
        results.append(from_f32(rank_sum(parts, op, dtype), dtype, saturate=False))
    return results


def moved(
    x: Array,
    text: str | None,
    *,
    source: int,
    key: str = "",
    call: int = 0,
    element: int = 0,
    residual: F32 | None = None,
    raw: bool = False,
) -> Array:
    """One range encoded by ``source`` and decoded: what all_gather, broadcast and recv give.

    raw: sent unencoded.
    """
    if text is None:
        return x.copy()
    codec = ReferenceCodec(text)
    if raw:
        zero = codec.spec.nonfinite == "zero"
        return np.where(np.isfinite(to_f32(x)), x, x.dtype.type(0)) if zero else x.copy()
    value = _decoded(codec, x, residual, key=key, call=call, source=source, element=element)
    return from_f32(value, dtype_of(x), saturate=True)


def goes_raw(text: str | None, ranks: int, x: Array) -> bool:
    """The rule for a part that is moved."""
    return text is not None and takes_raw_path(text, ranks, len(x), dtype_of(x), "move")


def all_gather(inputs: Sequence[Array], text: str | None, **position: Any) -> Array:
    """Every rank's input decoded, the own one too."""
    raw = goes_raw(text, len(inputs), inputs[0])
    return np.concatenate([moved(x, text, source=rank, raw=raw, **position) for rank, x in enumerate(inputs)])


def all_to_all(
    inputs: Sequence[Array], counts: Sequence[Sequence[int]], text: str | None, **position: Any
) -> list[Array]:
    """``counts[p][q]`` elements go from rank p to rank q; a rank's own part is copied as it is."""
    ranks = len(inputs)
    received: list[list[Array]] = [[] for _ in range(ranks)]
    for source, x in enumerate(inputs):
        first = element = 0
        for peer in range(ranks):
            count = counts[source][peer]
            part = x[first : first + count]
            if peer == source:
                received[peer].append(part.copy())
            else:
                raw = goes_raw(text, ranks, part)
                received[peer].append(moved(part, text, source=source, element=element, raw=raw, **position))
            first += count
            element += round_up(count, TILE)
    return [np.concatenate(parts) for parts in received]
