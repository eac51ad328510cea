"""Conformance: every transport, codec, rank count and size class against an independent replay.

Bit for bit, on every rank. The replay is docs/wire-format.md and the two-phase algorithm in numpy, so
a pass means that encoding, sums in rank order, both phases and decoding all do what the page says.
"""

from __future__ import annotations

import itertools

import pytest
from ranks import RankPools
from reference.spec import BLOCK, FORMATS
from replay_cases import TRANSPORTS, Case, check, numbered

RANKS = (1, 2, 3, 4)
KINDS = ("normal", "specials", "large", "zeros")
COMBINATIONS = list(itertools.product(("sum", "avg"), ("float32", "bfloat16", "float16")))

everywhere = pytest.mark.parametrize(
    ("transport", "ranks"), [(transport, ranks) for ranks in RANKS for transport in TRANSPORTS]
)


def _sizes(name: str, ranks: int) -> list[int]:
    """None, one, two, seven, one off the ranks, a prime, past a block, around a tile, odd tiles, many."""
    return [0, 1, 2, 7, max(ranks - 1, 0), ranks + 1, 1009, BLOCK[name] + 1, 4095, 4097, 3 * 4096 + 5, 100003]


def _all_reduce_cases(name: str, ranks: int) -> list[Case]:
    sizes = _sizes(name, ranks)
    direct = ":min_bytes=0"
    cases = []
    # Every size with every op and dtype, the large one with one of them a format.
    for i, (count, (op, dtype)) in enumerate(itertools.product(sizes[:-1], COMBINATIONS)):
        cases.append(Case("all_reduce", name + direct, (count,), op, dtype, KINDS[i % 7 % 4]))
    op, dtype = COMBINATIONS[(FORMATS.index(name) + ranks) % 6]
    cases.append(Case("all_reduce", name + direct, (sizes[-1],), op, dtype))
    # The options, each with every size and a share of ops, dtypes and inputs.
    texts = [
        f"hadamard+{name}{direct}",
        f"{name}:nonfinite=zero{direct}",
        f"{name}:crc=1{direct}",
        f"hadamard+{name}:size=256:seed=5{direct}",
        name,
    ]
    if name != "fp32":
        texts += [f"{name}:rounding=stochastic:seed=7{direct}"]
    if name in ("mxfp4", "nvfp4"):
        texts += [f"{name}:scale=search{direct}"]
    for i, (text, count) in enumerate(itertools.product(texts, sizes[:-1])):
        op, dtype = COMBINATIONS[i % 6]
        kind = KINDS[i % 4] if "hadamard" not in text else KINDS[i % 2]
        key = "key" if "stochastic" in text or i % 3 == 0 else None
        cases.append(Case("all_reduce", text, (count,), op, dtype, kind, key=key, in_place=i % 2 == 0))
    # State: call counters and residuals over several calls, and without a key.
    for i, text in enumerate(
        [f"{name}:ef=1{direct}", f"{name}:rounding=stochastic:ef=1{direct}", f"hadamard+{name}:ef=1{direct}"]
    ):
        if name != "fp32" or "stochastic" not in text:
            op, dtype = COMBINATIONS[i]
            cases.append(Case("all_reduce", text, (5003,), op, dtype, KINDS[i % 2], key="state", calls=4))
    if name != "fp32":
        cases.append(Case("all_reduce", f"{name}:rounding=stochastic{direct}", (5003,), calls=2))
    # Several tensors, some of them empty, each replayed alone.
    cases.append(Case("all_reduce", name + direct, (1, 0, 4097, 130, 9000), "avg", "bfloat16", key="many"))
    cases.append(Case("all_reduce", f"hadamard+{name}", (3, 20000, 0, 4096), "sum", "float32", "specials"))
    return numbered(cases)


@pytest.mark.parametrize("name", FORMATS)
@everywhere
def test_all_reduce(transport: str, ranks: int, name: str, rank_pool: RankPools) -> None:
    check(transport, ranks, _all_reduce_cases(name, ranks), rank_pool)


@everywhere
def test_all_reduce_exact(transport: str, ranks: int, rank_pool: RankPools) -> None:
    """codec=None and the raw path: sums in rank order in fp32, one rounding to the dtype."""
    cases = [
        Case("all_reduce", text, (count,), op, dtype, kind)
        for text in (None, "int8:min_bytes=1000000000", "nvfp4:nonfinite=zero:min_bytes=1000000000")
        for op, dtype in COMBINATIONS
        for count, kind in [(0, "normal"), (1, "large"), (1009, "specials"), (4097, "large"), (20000, "normal")]
    ]
    cases.append(Case("all_reduce", None, (5, 0, 70000), "avg", "bfloat16"))
    check(transport, ranks, numbered(cases), rank_pool)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_paths_follow_the_rule(transport: str, ranks: int, rank_pool: RankPools) -> None:
    """Around the sizes at which a call changes its path, by default and by min_bytes."""
    cases = []
    for name in FORMATS:
        limit = 32768 // (ranks - 1) // 4
        counts = {1, 100, 1009, limit - 1, limit, limit + 1, limit + 4096}
        cases += [Case("all_reduce", name, (count,)) for count in sorted(counts)]
        cases += [Case("all_reduce", f"{name}:min_bytes=40000", (count,)) for count in (9999, 10000, 10001)]
    check(transport, ranks, numbered(cases), rank_pool)


def _other_verbs(ranks: int) -> list[Case]:
    cases = []
    texts = [None, *(f"{name}:min_bytes=0" for name in FORMATS)]
    texts += ["hadamard+int4:min_bytes=0", "nvfp4:scale=search:min_bytes=0", "int8:nonfinite=zero:min_bytes=0"]
    texts += ["fp8_e4m3:rounding=stochastic:seed=3:min_bytes=0"]
    # The default rule, and one of a caller's own; both paths obey the policy for NaN and Inf.
    texts += ["fp8_e4m3", "int4:nonfinite=zero", "nvfp4:nonfinite=zero:min_bytes=20000"]
    sizes = [0, 1, 7, ranks + 1, 1009, 4097, 12293]
    for i, (text, count) in enumerate(itertools.product(texts, sizes)):
        op, dtype = COMBINATIONS[i % 6]
        key = "key" if text and "stochastic" in text else None
        common = {"dtype": dtype, "kind": KINDS[i % 2], "key": key}
        cases.append(Case("reduce_scatter", text, (count,), op, **common))
        cases.append(Case("all_gather", text, (count,), **common))
        cases.append(Case("broadcast", text, (count,), root=i % ranks, **common))
        if ranks > 1:
            cases.append(Case("ring", text, (count,), **common))
        table = [
            count if (i + p * ranks + q) % 3 else (count * (p + 1)) // 2
            for p in range(ranks)
            for q in range(ranks)
        ]
        cases.append(Case("all_to_all", text, tuple(table), **common))
    cases.append(Case("reduce_scatter", "int4:ef=1:min_bytes=0", (5003,), "avg", key="state", calls=4))
    return numbered(cases)


@everywhere
def test_other_verbs(transport: str, ranks: int, rank_pool: RankPools) -> None:
    """reduce_scatter, all_gather, all_to_all, broadcast, send and recv."""
    check(transport, ranks, _other_verbs(ranks), rank_pool)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_small_slots(transport: str, ranks: int, rank_pool: RankPools) -> None:
    """Slots of the least size cut calls into many chunks: the bits stay the same."""
    cases = []
    for i, name in enumerate(FORMATS):
        op, dtype = COMBINATIONS[i % 6]
        cases.append(Case("all_reduce", f"{name}:min_bytes=0", (100003,), op, dtype))
        cases.append(Case("all_reduce", f"{name}:min_bytes=0", (30000, 1, 20000, 4096), op, dtype))
    for text in ("hadamard+int4:ef=1", "fp32:ef=1", "nvfp4:ef=1:rounding=stochastic"):
        cases.append(Case("all_reduce", f"{text}:min_bytes=0", (60001,), key="state", calls=2))
    for i, text in enumerate(
        [None, "int3:min_bytes=0", "nvfp4:rounding=stochastic:min_bytes=0", "fp32:min_bytes=0"]
    ):
        _, dtype = COMBINATIONS[i]
        cases += [
            Case("reduce_scatter", text, (40001,), "avg", dtype, key="a"),
            Case("all_gather", text, (40001,), dtype=dtype, key="b"),
            Case("broadcast", text, (100003,), dtype=dtype, key="c", root=1),
            Case("ring", text, (100003,), dtype=dtype, key="d"),
            Case(
                "all_to_all", text, tuple(40000 + 1000 * k for k in range(ranks * ranks)), dtype=dtype, key="e"
            ),
        ]
    check(transport, ranks, numbered(cases), rank_pool, slot_bytes=128 << 10)
