"""StiefelOptimizer: a numpy reference that shares no code, staying on the manifold, a problem it solves."""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcomm import errors
from gcomm.pytorch import StiefelOptimizer
from gcomm.pytorch.optim import orthonormalize

KINDS = [*itertools.product(("riemannian", "spectral"), ("polar", "qr"))]


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def start(n: int, p: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.nn.Parameter:
    generator = np.random.default_rng(seed)
    q, _ = np.linalg.qr(generator.standard_normal((n, p)))
    return torch.nn.Parameter(torch.tensor(q, dtype=dtype))


def off_manifold(w: torch.Tensor) -> float:
    x = w.detach().double().numpy()
    return float(np.linalg.norm(x.T @ x - np.eye(x.shape[1])))


class Reference:
    """One matrix in numpy float64: inverse square roots of Gram matrices where the optimiser has QR and SVD."""

    def __init__(self, w: np.ndarray, lr: float, momentum: float, direction: str, retraction: str) -> None:
        self.w, self.m = w.copy(), np.zeros_like(w)
        self.lr, self.momentum, self.direction, self.retraction = lr, momentum, direction, retraction

    def project(self, x: np.ndarray) -> np.ndarray:
        # The tangent space is spanned by w A (A skew) and by what is orthogonal to w.
        a = self.w.T @ x
        return self.w @ ((a - a.T) / 2) + (x - self.w @ a)

    @staticmethod
    def polar(x: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(x.T @ x)
        return np.asarray(x @ (vectors / np.sqrt(values)) @ vectors.T)

    def step(self, g: np.ndarray) -> None:
        self.m = self.momentum * self.project(self.m) + self.project(g)
        d = self.project(self.polar(self.m)) if self.direction == "spectral" else self.m
        y = self.w - self.lr * d
        if self.retraction == "polar":
            self.w = self.polar(y)
        else:
            # Of Cholesky's factor L of the Gram matrix, L^T is the R with a positive diagonal.
            self.w = np.linalg.solve(np.linalg.cholesky(y.T @ y), y.T).T


@pytest.mark.parametrize(("direction", "retraction"), KINDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_the_reference(direction: Any, retraction: Any, momentum: float) -> None:
    w, single = start(17, 5), start(17, 5, torch.float32)
    generator = np.random.default_rng(1)
    kinds = {"lr": 0.05, "momentum": momentum, "direction": direction, "retraction": retraction}
    optimizers = [StiefelOptimizer([each], **kinds) for each in (w, single)]
    reference = Reference(w.detach().numpy(), **kinds)
    for _ in range(25):
        g = generator.standard_normal((17, 5))
        for each, optimizer in zip((w, single), optimizers, strict=True):
            each.grad = torch.tensor(g, dtype=each.dtype)
            optimizer.step()
        reference.step(g)
        np.testing.assert_allclose(w.detach().numpy(), reference.w, rtol=0, atol=1e-11)
        np.testing.assert_allclose(single.detach().numpy(), reference.w, rtol=0, atol=2e-5)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 24),
    data=st.data(),
    kind=st.sampled_from(KINDS),
    scale=st.sampled_from([1e-12, 1e-3, 1.0, 1e6]),
    double=st.booleans(),
)
def test_a_step_descends_and_stays(n: int, data: Any, kind: Any, scale: float, double: bool) -> None:
    """f(W) = <C, W>, any C: along the step f falls as the slope says, and W stays on the manifold."""
    p = data.draw(st.integers(1, n))
    rank = data.draw(st.integers(0, p))
    seed = data.draw(st.integers(0, 1000))
    w = start(n, p, torch.float64 if double else torch.float32, seed)
    generator = np.random.default_rng(seed + 1)
    # Of any rank, zero included.
    c = generator.standard_normal((n, rank)) @ generator.standard_normal((rank, p)) * scale
    before = w.detach().double().numpy().copy()
    g = Reference(before, 0, 0, *kind).project(c)
    norm = np.linalg.norm(g)
    lr = 1e-3 / norm if kind[0] == "riemannian" and norm > 0 else 1e-3
    optimizer = StiefelOptimizer([w], lr, direction=kind[0], retraction=kind[1])
    w.grad = torch.tensor(c, dtype=w.dtype)
    optimizer.step()
    assert off_manifold(w) < (1e-13 if double else 3e-7) * np.sqrt(n * p)
    moved = w.detach().double().numpy() - before
    rounding = (1e-13 if double else 1e-6) * np.sqrt(n * p)
    if norm < 1e-9 * scale:  # nowhere to go, but for what is rounding
        assert kind[0] == "spectral" or np.linalg.norm(moved) <= 2e-3
        return
    slope = norm**2 * lr if kind[0] == "riemannian" else np.linalg.svd(g, compute_uv=False).sum() * lr
    fall = -np.sum(c * moved)
    assert fall > 0.5 * slope - rounding * np.linalg.norm(c)


@pytest.mark.parametrize(("direction", "retraction"), KINDS)
def test_it_stays_on_the_manifold_for_long(direction: Any, retraction: Any) -> None:
    w = start(40, 8, torch.float32)
    optimizer = StiefelOptimizer([w], 0.1, 0.9, direction, retraction)
    generator = torch.Generator().manual_seed(3)
    for _ in range(1000):
        w.grad = torch.randn(40, 8, generator=generator)
        optimizer.step()
    assert off_manifold(w) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize(("direction", "retraction"), KINDS)
def test_ten_thousand_steps(direction: Any, retraction: Any) -> None:
    w = start(128, 32, torch.float32)
    optimizer = StiefelOptimizer([w], 0.05, 0.9, direction, retraction)
    generator = torch.Generator().manual_seed(3)
    for _ in range(10_000):
        w.grad = torch.randn(128, 32, generator=generator)
        optimizer.step()
    assert off_manifold(w) < 2e-6


@pytest.mark.parametrize(("direction", "retraction"), KINDS)
def test_principal_components(direction: Any, retraction: Any) -> None:
    """-tr(W^T A W) / 2 is least on the span of A's leading eigenvectors."""
    n, p = 30, 4
    q, _ = np.linalg.qr(np.random.default_rng(5).standard_normal((n, n)))
    values = np.concatenate([[8.0, 7.0, 6.0, 5.0], np.linspace(2.0, 0.1, n - p)])
    a = torch.tensor(q * values @ q.T)
    w = start(n, p, seed=6)
    optimizer = StiefelOptimizer([w], 0.02, 0.8, direction, retraction)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -torch.trace(w.T @ a @ w) / 2
        loss.backward()
        return loss

    for step in range(400):
        if direction == "spectral":  # its steps do not get shorter by themselves
            optimizer.param_groups[0]["lr"] = 0.05 * 0.97**step
        optimizer.step(closure)
    assert abs(float(closure().detach()) + values[:p].sum() / 2) < 1e-6
    span = np.linalg.svd(q[:, :p].T @ w.detach().numpy(), compute_uv=False)
    assert span.min() > 1 - 1e-6


def test_no_gradient_no_direction_no_change() -> None:
    for direction, retraction in KINDS:
        w, idle = start(6, 3), start(6, 3, seed=9)
        before, idle_before = w.detach().clone(), idle.detach().clone()
        w.grad = torch.zeros_like(w)
        StiefelOptimizer([w, idle], 0.1, 0.9, direction, retraction).step()
        assert torch.allclose(w, before, rtol=0, atol=1e-15)
        assert torch.equal(idle, idle_before)


def test_saved_and_resumed_it_takes_the_same_steps() -> None:
    def gradient(step: int) -> torch.Tensor:
        return torch.randn(9, 4, generator=torch.Generator().manual_seed(step))

    w = start(9, 4, torch.float32)
    groups = [{"params": [w], "direction": "spectral"}]
    optimizer = StiefelOptimizer(groups, 0.1, momentum=0.9)
    saved: tuple[Any, Any] | None = None
    for step in range(6):
        if step == 3:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            saved = copy.deepcopy(w), torch.load(file, weights_only=True)
        w.grad = gradient(step)
        optimizer.step()
    assert saved is not None
    again = torch.nn.Parameter(saved[0].detach())
    resumed = StiefelOptimizer([again], 7.0)  # options come from the state
    resumed.load_state_dict(saved[1])
    for step in range(3, 6):
        again.grad = gradient(step)
        resumed.step()
    assert torch.equal(again, w)


def test_a_start_elsewhere() -> None:
    w = torch.nn.Parameter(torch.randn(7, 3))
    w.grad = torch.zeros_like(w)
    expected = torch.tensor(Reference.polar(w.detach().double().numpy()), dtype=torch.float32)
    optimizer = StiefelOptimizer([w], 0.1)
    with pytest.warns(UserWarning, match=r"shape \(7, 3\).*orthonormalize"):
        optimizer.step()
    assert torch.allclose(w, expected, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        other = torch.nn.Parameter(orthonormalize(torch.randn(7, 3)))
        other.grad = torch.ones_like(other)
        StiefelOptimizer([other], 0.1).step()
    with pytest.raises(errors.InvalidArgumentError, match="linearly dependent"):
        orthonormalize(torch.ones(4, 2))
    with pytest.raises(errors.InvalidArgumentError, match="NaN"):
        orthonormalize(torch.full((4, 2), float("nan")))


BAD = [
    ({"params": [torch.zeros(3)]}, r"\['params'\]\[0\].*shape \(3,\)"),
    ({"params": [torch.zeros(2, 3, 4)]}, r"shape \(2, 3, 4\)"),
    ({"params": [torch.zeros(5, 0)]}, r"shape \(5, 0\)"),
    ({"params": [torch.eye(3), torch.zeros(2, 3)]}, r"\['params'\]\[1\]: 3 columns of 2 elements.*transpose"),
    ({"params": [torch.eye(3).bfloat16()]}, "expected float32 or float64, got bfloat16"),
    ({"params": [torch.eye(3).int()]}, "got int32"),
    ({"params": [3.0]}, "expected a tensor, got float"),
    ({"lr": -1.0}, "lr: expected a finite number, 0 or more, got -1.0"),
    ({"lr": float("nan")}, "lr"),
    ({"lr": "fast"}, "lr.*'fast'"),
    ({"momentum": 1.0}, "momentum: expected a number from 0 to less than 1, got 1.0"),
    ({"direction": "downhill"}, "direction: expected one of riemannian, spectral, got 'downhill'"),
    ({"retraction": "cayley"}, "retraction: expected one of polar, qr, got 'cayley'"),
    ({"params": [{"params": [torch.eye(2)], "momentum": 2}]}, r"param_groups\[0\]: momentum"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_bad_arguments(change: dict[str, Any], words: str) -> None:
    with pytest.raises((errors.InvalidArgumentError, errors.DtypeError), match=words):
        StiefelOptimizer(**{"params": [torch.eye(3)], "lr": 0.1, **change})


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    first, second = start(5, 2), start(5, 2, seed=1)
    optimizer = StiefelOptimizer([{"params": [first]}, {"params": [second]}], 0.1)
    first.grad, second.grad = torch.ones(5, 2).double(), torch.full((5, 2), float("inf")).double()
    before = first.detach().clone()
    with pytest.raises(errors.InvalidArgumentError, match=r"param_groups\[1\]\['params'\]\[0\].*NaN or an Inf"):
        optimizer.step()
    assert torch.equal(first, before)
