"""Gift's mathematics in float64, and what its all-reduce gives: no code in common with the library.

A matrix's gradients are sent in coordinates in which they are close to isotropic. ``scale`` shrinks the leading
singular directions before quantising and stretches them back after; ``split`` sends them apart and quantises
the remainder; ``rows`` does so row by row; weights divide each element by its usual size. All of it is linear
and the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .replay import shards

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

SMALLEST_FACTOR = 2.0**-10
REST_FLOOR = 0.1


class Quantiser(Protocol):
    """Quantises and dequantises a flat range, as a codec does."""

    def __call__(self, x: F32, *, source: int, element: int) -> F32: ...

    def bits(self, count: int) -> int: ...


# ---- basis ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Basis:
    """Leading singular directions of a reference.

    Attributes
    ----------
    u, v:
        float64 (m, r) and (n, r), orthonormal columns.
    singular:
        float64 (r,), falling.
    rest, mean:
        Root mean squares of the other singular values, and of all.
    """

    u: F64
    v: F64
    singular: F64
    rest: float
    mean: float

    def factors(self, alpha: float = 0.375, floor: float = REST_FLOOR) -> F64:
        """D's diagonal (r,): max(2^-10, min(1, (rest / s)^alpha)).

        Gradients may have few directions at all, and those of the reference are not quite those of what is
        sent: more is left outside the basis than the reference shows. So ``rest`` counts
        ``floor`` times ``mean`` with it, else 1/d would blow the quantiser's noise up without bound.
        """
        rest = np.hypot(self.rest, floor * self.mean)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self.singular > 0, rest / self.singular, 1.0)
        return np.clip(ratio**alpha, SMALLEST_FACTOR, 1.0)


def _basis(u: F64, v: F64, singular: F64, reference: F64) -> Basis:
    smaller = min(reference.shape)
    energy = float(np.sum(reference**2))
    rest = max(0.0, energy - float(np.sum(singular**2))) / max(1, smaller - len(singular))
    return Basis(u, v, singular, np.sqrt(rest), np.sqrt(energy / smaller))


def svd_basis(reference: NDArray[np.floating], rank: int) -> Basis:
    """From the full SVD of ``reference`` (m, n)."""
    exact = reference.astype(np.float64)
    u, singular, vt = np.linalg.svd(exact, full_matrices=False)
    return _basis(u[:, :rank], vt[:rank].T, singular[:rank], exact)


def subspace_basis(
    reference: NDArray[np.floating], rank: int, rounds: int, start: F64 | None = None, seed: int = 0
) -> Basis:
    """By subspace iteration from ``start`` (m, r), cold if None, then turned by the SVD of the core.

    A round is V <- orth(G^T U), U <- orth(G V).
    """
    exact = reference.astype(np.float64)
    u = np.random.default_rng(seed).standard_normal((exact.shape[0], rank)) if start is None else start
    v = np.empty((exact.shape[1], rank))
    for _ in range(rounds):
        v = np.linalg.qr(exact.T @ u)[0]
        u = np.linalg.qr(exact @ v)[0]
    left, singular, right = np.linalg.svd(u.T @ exact @ v)
    return _basis(u @ left, v @ right.T, singular, exact)


# ---- transforms ----------------------------------------------------------------------------------------------


def products(g: F64, basis: Basis) -> tuple[F64, F64]:
    """P = U^T G (r, n) and W = G V (m, r)."""
    return basis.u.T @ g, g @ basis.v


def scaled(g: F64, basis: Basis, factors: F64) -> F64:
    """(I + U (D - I) U^T) G (I + V (D - I) V^T); with 1 / factors, the inverse."""
    left = g + basis.u @ ((factors - 1)[:, None] * (basis.u.T @ g))
    out: F64 = left + ((left @ basis.v) * (factors - 1)) @ basis.v.T
    return out


def split(g: F64, basis: Basis) -> tuple[F64, F64, F64]:
    """P = U^T G (r, n), S = (G - U P) V (m, r) and the remainder G - U P - S V^T."""
    p = basis.u.T @ g
    without = g - basis.u @ p
    s = without @ basis.v
    return p, s, without - s @ basis.v.T


def joined(p: F64, s: F64, remainder: F64, basis: Basis) -> F64:
    """The inverse of :func:`split`."""
    out: F64 = remainder + basis.u @ p + s @ basis.v.T
    return out


def factored_weights(square: NDArray[np.floating], observed: int) -> F64:
    """w_ij = sqrt(row_i col_j / mean) from the means over rows and columns of ``square`` (m, n).

    ``observed`` tensors went into the squares; each factor is at least max(2^-8, 2^(-3 observed)) of the root
    mean.
    """
    exact = square.astype(np.float64)
    mean = exact.mean()
    if mean == 0:
        return np.ones_like(exact)
    least = max(2.0**-8, 2.0 ** (-3 * observed))
    rows, columns = (np.maximum(np.sqrt(exact.mean(axis=axis) / mean), least) for axis in (1, 0))
    out: F64 = np.outer(rows, columns) * np.sqrt(mean)
    return out


def elementwise_weights(square: NDArray[np.floating]) -> F64:
    """w_ij = sqrt(v_ij)."""
    return _positive(np.sqrt(square.astype(np.float64)))


def _positive(weights: F64) -> F64:
    """Elements never seen take a small weight instead of none, so that the division is defined."""
    largest = float(weights.max())
    return np.maximum(weights, largest * SMALLEST_FACTOR) if largest > 0 else np.ones_like(weights)


# ---- the two-phase all-reduce --------------------------------------------------------------------------------


def sent(parts: Sequence[F64], quantise: Quantiser) -> list[F64]:
    """Phase 1: each rank's part as the owners have it: decoded, and exact in the rank's own shard."""
    results = []
    for rank, part in enumerate(parts):
        flat = part.astype(np.float32).ravel()
        for owner, shard in enumerate(shards(flat.size, len(parts))):
            if owner != rank:
                flat[shard] = quantise(flat[shard], source=rank, element=shard.start)
        results.append(flat.reshape(part.shape).astype(np.float64))
    return results


def received(parts: Sequence[F64], quantise: Quantiser) -> F64:
    """Phase 2: the owners' sums, in float32 and rank order, as everybody decodes them."""
    total = parts[0].astype(np.float32).ravel()
    for part in parts[1:]:
        total = total + part.astype(np.float32).ravel()
    for shard in shards(total.size, len(parts)):
        total[shard] = quantise(total[shard], source=-1, element=shard.start)
    return total.reshape(parts[0].shape).astype(np.float64)


def reduce_direct(gradients: Sequence[F64], quantise: Quantiser) -> F64:
    """The sum without a transform."""
    return received(sent(gradients, quantise), quantise)


def reduce_scaled(gradients: Sequence[F64], basis: Basis, quantise: Quantiser, alpha: float = 0.375) -> F64:
    """The sum in ``scale`` mode."""
    factors = basis.factors(alpha)
    total = reduce_direct([scaled(g, basis, factors) for g in gradients], quantise)
    return scaled(total, basis, 1 / factors)


def reduce_weighted(gradients: Sequence[F64], weights: F64, quantise: Quantiser) -> F64:
    """The sum with each element divided by its weight on the way."""
    return reduce_direct([g / weights for g in gradients], quantise) * weights


@dataclass(frozen=True)
class Side:
    """How P and S travel, S as its transpose: a block of a format lies in one direction.

    Attributes
    ----------
    first, second:
        Quantisers of the two phases.
    closed:
        The remainder is formed from the *decoded* sides, so that phase 1's side errors fall into it. Open, it
        is orthogonal to the basis, and what quantising leaves inside the basis is projected away.
    """

    first: Quantiser
    second: Quantiser
    closed: bool = False


def reduce_split(gradients: Sequence[F64], basis: Basis, quantise: Quantiser, side: Side) -> F64:
    """The sum in ``split`` mode."""
    u, v = basis.u, basis.v
    parts = [split(g, basis) for g in gradients]
    if not side.closed:
        p = received(sent([part[0] for part in parts], side.first), side.second)
        s = received(sent([part[1].T for part in parts], side.first), side.second).T
        remainder = reduce_direct([part[2] for part in parts], quantise)
        return joined(p, s, split(remainder, basis)[2], basis)
    ps = sent([part[0] for part in parts], side.first)
    without = [g - u @ p for g, p in zip(gradients, ps, strict=True)]
    ss = sent([(w @ v).T for w in without], side.first)
    remainder = reduce_direct([w - s.T @ v.T for w, s in zip(without, ss, strict=True)], quantise)
    return joined(received(ps, side.second), received(ss, side.second).T, remainder, basis)


def bits_direct(shape: tuple[int, int], quantise: Quantiser) -> float:
    """Wire bits an element."""
    count = shape[0] * shape[1]
    return quantise.bits(count) / count


def bits_split(shape: tuple[int, int], rank: int, quantise: Quantiser, side: Side) -> float:
    """Wire bits an element, sides included: the mean of the two phases."""
    beside = sum(q.bits(rank * length) for q in (side.first, side.second) for length in shape) / 2
    return bits_direct(shape, quantise) + beside / (shape[0] * shape[1])


# ---- split row by row ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bands:
    """A quantiser for (r, k): the leading rows in one format, the next in another.

    Attributes
    ----------
    bands:
        (rows, quantiser), from the strongest direction on.
    """

    bands: Sequence[tuple[int, Quantiser]]

    @property
    def rank(self) -> int:
        """Rows in all."""
        return sum(rows for rows, _ in self.bands)

    def _cut(self, x: F64) -> list[F64]:
        assert len(x) == self.rank
        return np.split(x, np.cumsum([rows for rows, _ in self.bands])[:-1])

    def decoded(self, x: F64, source: int) -> F64:
        """Each band encoded as a range of its own, and decoded."""
        flat = [
            quantise(band.astype(np.float32).ravel(), source=source, element=0)
            for band, (_, quantise) in zip(self._cut(x), self.bands, strict=True)
        ]
        return np.concatenate(flat).reshape(x.shape).astype(np.float64)

    def sent(self, parts: Sequence[F64]) -> list[F64]:
        """Phase 1, each band sharded by itself."""
        cut = [self._cut(part) for part in parts]
        done = [sent([c[i] for c in cut], quantise) for i, (_, quantise) in enumerate(self.bands)]
        return [np.concatenate([band[rank] for band in done]) for rank in range(len(parts))]

    def received(self, parts: Sequence[F64]) -> F64:
        """Phase 2, each band sharded by itself."""
        cut = [self._cut(part) for part in parts]
        return np.concatenate([received([c[i] for c in cut], q) for i, (_, q) in enumerate(self.bands)])

    def bits(self, length: int) -> int:
        """Wire bits of (r, length)."""
        return sum(quantise.bits(rows * length) for rows, quantise in self.bands)


def coded_rows(g: F64, v: F64, quantise: Quantiser, along: Bands, source: int) -> F64:
    """Some rows of a matrix as everybody decodes them: S = G V and the remainder G - Q(S) V^T.

    Row i of both depends on row i of ``g`` (k, n) alone; all side errors fall into the remainder.
    """
    s = along.decoded((g @ v).T, source).T
    remainder = (g - s @ v.T).astype(np.float32)
    flat = quantise(remainder.ravel(), source=source, element=0)
    out: F64 = flat.reshape(g.shape).astype(np.float64) + s @ v.T
    return out


def row_shards(rows: int, ranks: int) -> list[slice]:
    """Whole rows, as evenly as they go."""
    each = -(-rows // ranks)
    return [slice(min(s * each, rows), min((s + 1) * each, rows)) for s in range(ranks)]


def reduce_rows(
    gradients: Sequence[F64],
    basis: Basis,
    quantise: Quantiser,
    along: Bands,
    across: tuple[Bands, Bands] | None = None,
) -> F64:
    """The sum in ``rows`` mode: shards are whole rows, and the owner codes its sum as the senders did theirs.

    ``across`` sends P = U^T (G - G V V^T) apart too, in the formats of the two phases; phase 1's error in P
    falls into the remainder.
    """
    v = basis.v[:, : along.rank]
    beside: F64 = np.zeros_like(gradients[0])
    if across is not None:
        u = basis.u[:, : across[0].rank]
        ps = across[0].sent([u.T @ (g - (g @ v) @ v.T) for g in gradients])
        gradients = [g - u @ p for g, p in zip(gradients, ps, strict=True)]
        beside = u @ across[1].received(ps)
    out = np.empty_like(beside)
    for owner, shard in enumerate(row_shards(len(out), len(gradients))):
        total = np.zeros_like(out[shard])
        for rank, g in enumerate(gradients):
            total += g[shard] if rank == owner else coded_rows(g[shard], v, quantise, along, rank)
        out[shard] = coded_rows(total, v, quantise, along, -1)
    return out + beside


def bits_rows(
    shape: tuple[int, int], quantise: Quantiser, along: Bands, across: tuple[Bands, Bands] | None = None
) -> float:
    """Wire bits an element, sides included."""
    beside = float(along.bits(shape[0]))
    if across is not None:
        beside += sum(bands.bits(shape[1]) for bands in across) / 2
    return bits_direct(shape, quantise) + beside / (shape[0] * shape[1])


# ---- metrics -------------------------------------------------------------------------------------------------


def relative_error(estimate: F64, exact: F64) -> float:
    """||estimate - exact|| / ||exact||."""
    return float(np.linalg.norm(estimate - exact) / np.linalg.norm(exact))


class OwnGeometry:
    """Error in the exact sum's own singular coordinates, each entry over sqrt(s_i s_j).

    s is floored at 1e-3 of the largest; the Frobenius norm is divided by sqrt(min(m, n)).
    """

    def __init__(self, exact: F64) -> None:
        self.exact = exact
        self.u, s, self.vt = np.linalg.svd(exact, full_matrices=False)
        self.root = np.sqrt(np.maximum(s, 1e-3 * s[0]))

    def error(self, estimate: F64) -> float:
        """Of ``estimate`` (m, n)."""
        inside = self.u.T @ (estimate - self.exact) @ self.vt.T / np.outer(self.root, self.root)
        return float(np.linalg.norm(inside) / np.sqrt(len(self.root)))
