"""Residual vector quantisation of rows in float64: every distance in full, codes bit by bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def bits_of(codewords: int) -> int:
    """Bits of a code."""
    return (codewords - 1).bit_length()


def unpack(data: bytes, tokens: int, dim: int, codebooks: NDArray[np.float32]) -> tuple[F64, NDArray[np.int64]]:
    """Scales (tokens,) and codes (tokens, sub-vectors, stages) of what an encoder wrote."""
    stages, codewords, length = codebooks.shape
    scales = (np.frombuffer(data[: 2 * tokens], "<u2").astype(np.uint32) << 16).view(np.float32)
    number = int.from_bytes(data[2 * tokens :], "little")
    bits = bits_of(codewords)
    count = tokens * -(-dim // length) * stages
    codes = [(number >> (bits * at)) & ((1 << bits) - 1) for at in range(count)]
    assert number >> (bits * count) == 0
    return scales.astype(np.float64), np.array(codes).reshape(tokens, -1, stages)


def root_mean_squares(z: NDArray[np.float32]) -> F64:
    """Of each row."""
    return np.sqrt((z.astype(np.float64) ** 2).mean(axis=1))


def decoded(scales: F64, codes: NDArray[np.int64], dim: int, codebooks: NDArray[np.float32]) -> F64:
    """The rows that these codes stand for, (tokens, dim)."""
    stages = codebooks.shape[0]
    sums = sum(codebooks[s].astype(np.float64)[codes[:, :, s]] for s in range(stages))
    return (scales[:, None] * np.reshape(sums, (len(scales), -1)))[:, :dim]


def surplus(
    z: NDArray[np.float32], scales: F64, codes: NDArray[np.int64], codebooks: NDArray[np.float32]
) -> tuple[F64, F64]:
    """How much further than the nearest the chosen codewords are, and what fp32 leaves open.

    Both (tokens, sub-vectors, stages), in units of half a squared distance. A score c.c / 2 - x.c is a sum of
    length + 1 terms, each addition off by half a unit in the last place of at most c.c / 2 + sum |x_j c_j|; x
    itself, what the stages before left, is off by one rounding a stage and one of the division by the scale.
    """
    tokens, dim = z.shape
    stages, _, length = codebooks.shape
    unit = 2.0**-24
    rows = np.zeros((tokens, -(-dim // length) * length))
    rows[:, :dim] = np.divide(z, scales[:, None], out=np.zeros(z.shape), where=scales[:, None] > 0)
    left = rows.reshape(tokens, -1, length)
    off = np.abs(left) * unit
    worse, allowed = np.zeros(codes.shape), np.zeros(codes.shape)
    for s in range(stages):
        book = codebooks[s].astype(np.float64)
        half = (book**2).sum(axis=1) / 2
        scores = half - left @ book.T
        errors = (length + 1) * 1.01 * unit * (half + np.abs(left) @ np.abs(book.T)) + off @ np.abs(book.T)
        chosen = codes[:, :, s, None]
        worse[:, :, s] = np.take_along_axis(scores, chosen, 2)[:, :, 0] - scores.min(axis=2)
        best = scores.argmin(axis=2)[:, :, None]
        allowed[:, :, s] = sum(np.take_along_axis(errors, at, 2)[:, :, 0] for at in (chosen, best))
        left = left - book[codes[:, :, s]]
        off = off + np.abs(left) * unit
    return worse, allowed
