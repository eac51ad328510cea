"""What an all_reduce costs, from its size, codec, ranks and layout: bytes, messages, passes over elements."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gcomm.planner.pipeline import pipeline

TILE = 4096
ITEM_BYTES = 4
# As native/collective/plan.cpp, cut.h and native/comm/env.cpp have them.
RAW_BYTES = 32 << 10
CHUNKS = 32
MOST_SLOT, LEAST_SLOT, SLOT_BUDGET = 1 << 20, 128 << 10, 3 << 20
MOST_RANKS = 100_000


@dataclass(frozen=True)
class Codec:
    """What of a codec costs time.

    Attributes
    ----------
    name:
        As ``gcomm bench`` calls it; ``"none"`` is exact.
    bytes_per_element:
        On the wire, scales included.
    encode_s, decode_s:
        Seconds an element, one thread, data in the cache.
    """

    name: str
    bytes_per_element: float
    encode_s: float
    decode_s: float


@dataclass(frozen=True)
class Costs:
    """A machine and its link.

    Attributes
    ----------
    call_s:
        Of a call, whatever it does.
    latency_s:
        Of one exchange.
    message_s:
        Processor time to send a message and to receive one.
    copy_s:
        Processor time a byte sent and received.
    wire_s:
        A byte on a host's link, one way.
    memory_factor, memory_bytes:
        Passes over elements take ``1 + memory_factor * B / (B + memory_bytes)`` times as long for a tensor of B
        bytes: out of the cache they are slower.
    """

    call_s: float
    latency_s: float
    message_s: float
    copy_s: float
    wire_s: float
    memory_factor: float
    memory_bytes: float


@dataclass(frozen=True)
class Layout:
    """Where the ranks are.

    Attributes
    ----------
    ranks:
        All of them.
    per_host:
        Ranks that share a host's cores and its link.
    cores:
        Of a host.
    own_links:
        Each rank has a link of its own, though it shares the cores (namespaces of one machine).
    """

    ranks: int
    per_host: int
    cores: int
    own_links: bool = False

    @property
    def stretch(self) -> float:
        """How many times longer a rank's work takes for the cores that it shares."""
        return max(1.0, min(self.per_host, self.ranks) / self.cores)


@dataclass(frozen=True)
class Prediction:
    """Of one call.

    Attributes
    ----------
    time_s:
        All of it.
    processor_s, wire_s, latency_s:
        What each would take alone; the largest is what the call waits for.
    """

    time_s: float
    processor_s: float
    wire_s: float
    latency_s: float

    @property
    def bound(self) -> str:
        """What the call mostly waits for."""
        parts = {"processor": self.processor_s, "wire": self.wire_s, "latency": self.latency_s}
        return max(parts, key=lambda name: parts[name])


def shard(count: int, ranks: int) -> int:
    """Elements of a shard: whole tiles (native/collective/plan.cpp, shard_length)."""
    return math.ceil(math.ceil(count / ranks) / TILE) * TILE


def chunks(shard_bytes: float, ranks: int) -> int:
    """Into how many messages a shard is cut (native/collective/cut.h, chunk_target)."""
    slot = MOST_SLOT
    while slot > LEAST_SLOT and slot * max(ranks - 1, 1) > SLOT_BUDGET:
        slot //= 2
    target = max(shard_bytes / max(CHUNKS, math.ceil(shard_bytes / slot)), slot / 8)
    return max(1, math.ceil(shard_bytes / target))


def predict(codec: Codec, count: int, costs: Costs, layout: Layout) -> Prediction:
    """An all_reduce of ``count`` float32 elements over all ranks at once (flat)."""
    n = layout.ranks
    if n == 1:
        return Prediction(costs.call_s, costs.call_s, 0.0, 0.0)
    raw_bytes = count * ITEM_BYTES
    slower = 1 + costs.memory_factor * raw_bytes / (raw_bytes + costs.memory_bytes)
    stretch = layout.stretch
    encode, decode = codec.encode_s * slower * stretch, codec.decode_s * slower * stretch
    copy, message = costs.copy_s * slower * stretch, costs.message_s * stretch
    wire = _wire_s(costs, layout)
    if raw_bytes * (n - 1) <= RAW_BYTES:
        sent = (n - 1) * raw_bytes
        processor = costs.call_s * stretch + (n - 1) * (message + count * decode) + sent * copy
        return Prediction(processor + sent * wire + costs.latency_s, processor, sent * wire, costs.latency_s)
    length = shard(count, n)
    owners = -(-count // length)
    steps = chunks(length * codec.bytes_per_element, n)
    part = length / steps
    part_bytes = part * codec.bytes_per_element
    # An owner has the most to do: it takes part in phase 1 like everybody and sends its shard's sum to all.
    first = (n - 1) * message + (owners - 1) * part * encode + (owners - 1) * part_bytes * copy
    second = (n - 1) * (message + part * decode) + part * encode + (n - 1) * part_bytes * copy
    third = (owners - 1) * part * decode
    first_wire, second_wire = (owners - 1) * part_bytes * wire, (n - 1) * part_bytes * wire
    fixed = costs.call_s * stretch
    return Prediction(
        fixed + pipeline(steps, (first, second, third), (first_wire, second_wire), costs.latency_s),
        fixed + steps * (first + second + third),
        steps * (first_wire + second_wire),
        2 * costs.latency_s,
    )


def predict_two_level(codec: Codec, exact: Codec, count: int, costs: Costs, layout: Layout) -> Prediction:
    """Exact inside a host, compressed between hosts.

    A reduce_scatter among a host's ranks, an all_reduce of each part among the ranks that have the same part on
    all hosts (a host's parts share its link), an all_gather inside the host. Inside a host bytes are copied and
    cross no link.
    """
    inside = min(layout.per_host, layout.ranks)
    hosts = -(-layout.ranks // inside)
    if hosts == 1 or inside == 1:
        return predict(codec, count, costs, layout)
    part = -(-count // inside)
    stretch = layout.stretch
    raw_bytes = count * ITEM_BYTES
    slower = 1 + costs.memory_factor * raw_bytes / (raw_bytes + costs.memory_bytes)
    moved = (inside - 1) * part
    one_way = (inside - 1) * costs.message_s + moved * ITEM_BYTES * costs.copy_s * slower
    within = 2 * one_way + moved * exact.decode_s * slower
    within_s = within * stretch + 2 * (costs.call_s * stretch + costs.latency_s)
    # All ranks of a host are at it: what they do takes as long as inside, and their messages share its link.
    between = predict(
        replace(codec, encode_s=codec.encode_s * stretch, decode_s=codec.decode_s * stretch),
        part,
        replace(
            costs,
            call_s=costs.call_s * stretch,
            message_s=costs.message_s * stretch,
            copy_s=costs.copy_s * stretch,
            wire_s=costs.wire_s * (1 if layout.own_links else inside),
        ),
        Layout(hosts, 1, 1),
    )
    return Prediction(
        within_s + between.time_s,
        within * stretch + between.processor_s,
        between.wire_s,
        2 * costs.latency_s + between.latency_s,
    )


def _wire_s(costs: Costs, layout: Layout) -> float:
    """Seconds a byte that a rank sends, on a link that its host's other ranks use as well."""
    here = min(layout.per_host, layout.ranks)
    if layout.own_links:
        return costs.wire_s
    if here == layout.ranks:
        return 0.0  # all on one host: nothing crosses a link
    return costs.wire_s * here * (layout.ranks - here) / (layout.ranks - 1)
