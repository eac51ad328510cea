"""The demo's text: the source of Python's standard library, cut into training and evaluation parts."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

TRAINING_BYTES = 8 << 20
EVALUATION_BYTES = 256 << 10


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes to evaluate on, from different files."""

    training: np.ndarray[tuple[int], np.dtype[np.uint8]]
    evaluation: np.ndarray[tuple[int], np.dtype[np.uint8]]

    @property
    def digest(self) -> str:
        """Short checksum of all of it; ranks must agree."""
        return hashlib.sha256(self.training.tobytes() + self.evaluation.tobytes()).hexdigest()[:16]


def load_corpus() -> Corpus:
    """Read the standard library's top-level modules and packages, files in a fixed shuffled order.

    Raises
    ------
    FileNotFoundError
        This Python comes without the source of its standard library.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        path for path in root.rglob("*.py") if not {"site-packages", "dist-packages", "test"} & set(path.parts)
    )
    if not files:
        raise FileNotFoundError(
            f"no Python source under {root}: the demo trains on the standard library's text"
        )
    training, evaluation = bytearray(), bytearray()
    for position, index in enumerate(np.random.default_rng(0).permutation(len(files))):
        if len(training) >= TRAINING_BYTES and len(evaluation) >= EVALUATION_BYTES:
            break
        (evaluation if position % 16 == 0 else training).extend(files[index].read_bytes())
    return Corpus(
        np.frombuffer(bytes(training[:TRAINING_BYTES]), np.uint8),
        np.frombuffer(bytes(evaluation[:EVALUATION_BYTES]), np.uint8),
    )


def training_batch(corpus: Corpus, seed: int, step: int, rank: int, *, sequences: int, length: int) -> Tensor:
    """The sequences (sequences, length), int64, that ``rank`` trains on at ``step``; the same in every run."""
    generator = np.random.default_rng((seed, step, rank))
    starts = generator.integers(0, corpus.training.size - length, sequences)
    rows = corpus.training[starts[:, None] + np.arange(length)]
    return torch.from_numpy(rows.astype(np.int64))


def evaluation_batches(
    corpus: Corpus, rank: int, ranks: int, *, total: int, length: int, sequences: int
) -> list[Tensor]:
    """``rank``'s share, in batches of at most ``sequences``, of ``total`` sequences spread over the text."""
    starts = np.linspace(0, corpus.evaluation.size - length, total).astype(np.int64)[rank::ranks]
    rows = torch.from_numpy(corpus.evaluation[starts[:, None] + np.arange(length)].astype(np.int64))
    return list(torch.split(rows, sequences))
