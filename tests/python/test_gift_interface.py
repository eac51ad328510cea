"""What GIFT's interface says: verbs that refuse it, bases that must agree, reports, codec texts; and ranks that
are processes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gift_data import codecs_of, gradients, reduced
from ranks import RankPools, run_local
from reference import gift

import gcomm
from gcomm.errors import CodecError, MismatchError, UnsupportedError

# ---- what the interface says ---------------------------------------------------------------------------------


def _refusals(comm: gcomm.Communicator) -> None:
    codec = gcomm.codec("gift+int8")
    x, y = np.ones((16, 16), np.float32), np.ones((16 * comm.size, 16), np.float32)
    with pytest.raises(
        ValueError, match=r"gift\+int8 learns a transform for each tensor \(gift\) and needs a key"
    ):
        comm.all_reduce(x, codec=codec)
    only_moves = (
        r"gift learns from reduced tensors and belongs to all_reduce and reduce_scatter; take the format"
    )
    peer = 1 - comm.rank
    for call in (
        lambda: comm.all_gather_into_tensor(y, x, codec=codec, key="w"),
        lambda: comm.broadcast(x, 0, codec=codec, key="w"),
        lambda: comm.send(x, peer, codec=codec, key="w"),
        lambda: comm.recv(x, peer, codec=codec, key="w"),
        lambda: comm.all_to_all_single(y, y.copy(), codec=codec, key="w"),
    ):
        with pytest.raises(ValueError, match=only_moves):
            call()
    with pytest.raises(ValueError, match="spectral and elementwise gift cannot go through reduce_scatter"):
        comm.reduce_scatter_tensor(x, y, codec=codec, key="w")
    with pytest.raises(UnsupportedError, match="encodes inside all_reduce only"):
        codec.encode(x, key="w")
    # Nothing was sent: the communicator is in step.
    comm.all_reduce(x, codec=None)
    assert (x == comm.size).all()


def test_verbs_refuse() -> None:
    run_local(_refusals, 2)


def _other_basis(comm: gcomm.Communicator, codecs: list[gcomm.Codec]) -> None:
    x = np.ones((32, 32), np.float32)
    with pytest.raises(MismatchError, match="basis"):
        comm.all_reduce(x, codec=codecs[comm.rank], key="w")
    assert (x == 1).all()
    comm.all_reduce(x, codec=codecs[comm.rank], key="other")


def test_bases_must_agree() -> None:
    codecs = codecs_of("gift+int8:min_bytes=0", 2)
    for step, codec in enumerate(codecs):
        reduced([codec], [gradients((32, 32), 1, step)])
    run_local(_other_basis, 2, codecs)


def test_report() -> None:
    shape, ranks = (96, 128), 2
    steps = [gradients(shape, ranks, step) for step in range(2)]
    assert gcomm.codec("int8").report() == []
    for text, path, rank in [
        ("gift+int4:mode=scale:rank=4", "scale", 4),
        ("gift+int4:mode=split:rank=7", "split", 7),
        ("gift+int4:mode=rows:rank=9", "rows", 9),
    ]:
        codecs = codecs_of(text + ":min_bytes=0", ranks)
        assert codecs[0].report() == []
        reduced(codecs, steps[:1])
        (row,) = codecs[0].report()
        assert codecs[1].report() == [row]
        expected = {
            "key": "w",
            "geometry": "spectral",
            "rows": 96,
            "cols": 128,
            "calls": 1,
            "path": path,
            "rank": rank,
        }
        assert expected.items() <= row.items()
        assert row["why"] == "asked for"
        assert 0 < row["predicted_error"] < row["direct_error"] < 0.2
        assert row["bits"] >= row["direct_bits"] == 4.25
        if path == "split":
            assert row["bits"] == pytest.approx(4.25 + 8.125 * 7 * (96 + 128) / (96 * 128))
        # The prediction is of one quantisation: this call's two of two ranks are about that.
        result = reduced(codecs, steps[1:])[0]
        lost = gift.relative_error(
            result.astype(np.float64), np.add.reduce([g.astype(np.float64) for g in steps[1]])
        )
        assert lost < 4 * row["predicted_error"]
        assert codecs[0].report()[0]["calls"] == 2
    codec = gcomm.codec("gift+int4:geometry=factored:min_bytes=0")
    reduced([codec], [[steps[0][0]]])
    (row,) = codec.report()
    assert row["geometry"] == "factored"
    assert row["path"] == "by row and column"
    small = gcomm.codec("gift+int4:min_bytes=0")
    reduced([small], [[np.ones((1, 300), np.float32)]])
    assert small.report()[0]["path"] == "direct"
    assert "fewer than 8" in small.report()[0]["why"]
    flat = gcomm.codec("gift+int4:min_bytes=0")
    flat_spectrum = np.linalg.qr(np.random.default_rng(1).standard_normal((64, 64)))[0].astype(np.float32)
    reduced([flat], [[flat_spectrum]])
    assert flat.report()[0]["path"] == "direct"
    assert flat.report()[0]["why"] == "the spectrum promises no gain"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gift+int9", "unknown format"),
        ("gift+gift+int8", "in this order"),
        ("hadamard+gift+int8", "in this order"),
        ("int8:mode=rows", "mode belongs to the gift transform"),
        ("int8:rank=4", "rank belongs to the gift transform"),
        ("gift+int8:mode=columns", "expected auto, scale, split or rows"),
        ("gift+int8:geometry=round", "expected spectral, factored or elementwise"),
        ("gift+int8:rank=0", "expected 1 to 256"),
        ("gift+int8:rank=257", "expected 1 to 256"),
        ("gift+int8:rank=few", "expected a whole number"),
        ("gift+int8:refresh=0", "expected 1 to"),
        ("gift+int8:alpha=0.3", "expected 0.125"),
        ("gift+int8:alpha=2", "expected 0.125"),
        ("gift+int8:side=fp32", "expected bf16"),
        ("gift+int8:broadcast_basis=2", "expected 0 or 1"),
        ("gift+int8:geometry=factored:rank=4", "belong to geometry=spectral"),
        ("gift+int8:geometry=elementwise:mode=rows", "belong to geometry=spectral"),
        ("gift+int8:mode=scale:side=bf16", "side belongs to"),
        ("gift+int8:mode=split:alpha=0.5", "alpha belongs to mode=scale"),
        ("gift+int8:rank=4:rank=5", "given twice"),
    ],
)
def test_codec_options(text: str, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        gcomm.codec(text)


def test_canonical_text() -> None:
    for text, canonical in [
        (
            "gift+int8:mode=auto:rank=auto:refresh=10:alpha=0.375:geometry=spectral:broadcast_basis=0",
            "gift+int8",
        ),
        ("gift+hadamard+int4:ef=1:size=128:mode=scale", "gift+hadamard+int4:size=128:mode=scale:ef=1"),
        (
            "gift+nvfp4:side=bf16:rank=16:mode=split:refresh=3",
            "gift+nvfp4:mode=split:rank=16:refresh=3:side=bf16",
        ),
    ]:
        assert gcomm.codec(text).spec == canonical
        assert gcomm.codec(canonical).spec == canonical


# ---- over processes ------------------------------------------------------------------------------------------


def _over_torch(rank: int, size: int) -> list[bytes]:
    """Bits of a few calls, parameters with shapes, over the group's own TCP transport."""
    results = []
    for step in range(3):
        parts = gradients((64, 96), size, step)
        x = torch.from_numpy(parts[rank].copy())
        gcomm.all_reduce(x, codec="gift+int4:rank=8:mode=rows:ef=1:min_bytes=0", key="layer.weight")
        results.append(x.numpy().tobytes())
    gcomm.all_reduce_coalesced([x, torch.ones(10)], codec="gift+int4", keys=["layer.weight", "layer.bias"])
    return results


def test_over_a_torch_group(rank_pool: RankPools) -> None:
    by_rank = rank_pool(3).run(_over_torch)
    assert by_rank[0] == by_rank[1] == by_rank[2]
    steps = [gradients((64, 96), 3, step) for step in range(3)]
    local = reduced(codecs_of("gift+int4:rank=8:mode=rows:ef=1:min_bytes=0", 3), steps)
    assert [result.tobytes() for result in local] == by_rank[0]
