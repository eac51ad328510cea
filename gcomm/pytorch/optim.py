"""An optimiser for matrices with orthonormal columns."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch

from ..errors import DtypeError, InvalidArgumentError

__all__ = ["StiefelOptimizer", "orthonormalize"]

_DIRECTIONS = ("riemannian", "spectral")
_RETRACTIONS = ("polar", "qr")
_DTYPES = (torch.float32, torch.float64)
# A parameter that is further from orthonormal columns than this was not put on the manifold by anybody.
_OFF_MANIFOLD = 1e-3
# Singular values below this part of the largest are rounding, and have no direction.
_RANK_TOLERANCE = 1e-12


class StiefelOptimizer(torch.optim.Optimizer):
    r"""Descends among the n x p matrices whose columns are orthonormal, :math:`W^T W = I` (n >= p).

    With G the gradient, :math:`P_W(G) = G - W\,\mathrm{sym}(W^T G)` its projection on the tangent space, one
    step is

    .. math::
        M &\leftarrow \mu\, P_W(M) + P_W(G) \\
        D &= M \quad\text{or}\quad P_W(\mathrm{polar}(M)) \\
        W &\leftarrow \mathrm{retract}(W - \eta D)

    where :math:`P_W(M)` carries the momentum of the last step over to where W is now,
    :math:`\mathrm{polar}(M) = U V^T` for :math:`M = U S V^T`, and the retraction is the polar factor or the Q
    of a QR decomposition with positive diagonal of R.

    Parameters
    ----------
    params : iterable of torch.Tensor or of dict
        Matrices (n, p), n >= p, float32 or float64, on any device; or parameter groups, each with any of the
        options below.
    lr : float
        The step :math:`\eta`, 0 or more. For ``direction="spectral"`` it is the length of a step in the
        spectral norm before its projection, whatever the gradient's size.
    momentum : float
        :math:`\mu`, from 0 to less than 1.
    direction : {"riemannian", "spectral"}
        Riemannian gradient descent, or steepest descent in the spectral norm. Both descend to first order: the
        slope is :math:`-\lVert P_W(G)\rVert_F^2` and, without momentum, minus the sum of its singular values.
    retraction : {"polar", "qr"}
        "polar" gives the nearest matrix with orthonormal columns, "qr" costs less.

    Raises
    ------
    gcomm.errors.InvalidArgumentError
        A parameter is no matrix, or wider than tall, or an option has no such value; at ``step()``: a gradient
        that is sparse or holds a NaN or an Inf. Nothing has been changed then.
    gcomm.errors.DtypeError
        A parameter is not float32 or float64 (columns in 16 bits are orthonormal to 1e-2 only), or a DTensor:
        the projections need the whole matrix.

    Notes
    -----
    A step is computed in float64, and its result rounded once: :math:`\lVert W^T W - I\rVert` is that of one
    rounding after any number of steps. A parameter that does not have orthonormal columns at its first step is
    replaced by its polar factor, with a warning; :func:`orthonormalize` does that beforehand.

    References
    ----------
    P.-A. Absil, R. Mahony, R. Sepulchre, *Optimization Algorithms on Matrix Manifolds*, 2008: projection
    (3.35), retractions (example 4.1.3), vector transport by projection (section 8.1.3).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.0,
        direction: Literal["riemannian", "spectral"] = "riemannian",
        retraction: Literal["polar", "qr"] = "polar",
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "direction": direction, "retraction": retraction}
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters with options of their own; see the class."""
        at = len(self.param_groups)
        options = {**self.defaults, **param_group}
        _check_number(options["lr"], f"param_groups[{at}]: lr", math.inf)
        _check_number(options["momentum"], f"param_groups[{at}]: momentum", 1.0)
        for name, known in (("direction", _DIRECTIONS), ("retraction", _RETRACTIONS)):
            if options[name] not in known:
                raise InvalidArgumentError(
                    f"param_groups[{at}]: {name}: expected one of {', '.join(known)}, got {options[name]!r}"
                )
        given = param_group["params"]
        listed = [given] if isinstance(given, torch.Tensor) else list(given)
        for i, each in enumerate(listed):
            # torch takes (name, tensor) as well.
            _check_matrix(each[1] if isinstance(each, tuple) else each, f"param_groups[{at}]['params'][{i}]")
        super().add_param_group({**param_group, "params": listed})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the model anew, with gradients, and returns the loss.

        Returns
        -------
        The closure's loss, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for at, group in enumerate(self.param_groups):
            for i, parameter in enumerate(group["params"]):
                _check_gradient(parameter, f"param_groups[{at}]['params'][{i}]")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)
        return loss

    def _step_one(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        w = parameter.double()
        if not state:
            w = _on_manifold(w)
            state["step"] = 0
        state["step"] += 1
        m = tangent(w, parameter.grad.double())  # type: ignore[union-attr]
        if group["momentum"] != 0:
            if "momentum_buffer" in state:
                m = m + group["momentum"] * tangent(w, state["momentum_buffer"].double())
            state["momentum_buffer"] = m.to(parameter.dtype)
        d = tangent(w, polar(m)) if group["direction"] == "spectral" else m
        moved = w - group["lr"] * d
        parameter.copy_(polar(moved) if group["retraction"] == "polar" else _qf(moved))


def orthonormalize(tensor: torch.Tensor) -> torch.Tensor:
    """Replaces a matrix by the nearest one with orthonormal columns, in place, and returns it.

    Parameters
    ----------
    tensor : torch.Tensor of float32 or float64, (n, p) with n >= p
        Of rank p.

    Raises
    ------
    gcomm.errors.InvalidArgumentError, gcomm.errors.DtypeError
        It is none such.
    """
    _check_matrix(tensor, "orthonormalize: tensor")
    with torch.no_grad():
        return tensor.copy_(_full_rank_polar(tensor.double(), "orthonormalize: tensor"))


def tangent(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The projection of x on the tangent space at w: x - w sym(w^T x)."""
    product = w.mT @ x
    return x - w @ ((product + product.mT) / 2)


def polar(x: torch.Tensor) -> torch.Tensor:
    """U V^T of x = U S V^T, over singular values that are not zero: zero for a zero matrix.

    By QR first: what is decomposed then is p x p.
    """
    q, r = torch.linalg.qr(x)
    u, s, vh = torch.linalg.svd(r)
    kept = s > _RANK_TOLERANCE * s.max()
    factor: torch.Tensor = q @ ((u * kept) @ vh)
    return factor


def _qf(x: torch.Tensor) -> torch.Tensor:
    q, r = torch.linalg.qr(x)
    factor: torch.Tensor = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return factor


def _on_manifold(w: torch.Tensor) -> torch.Tensor:
    deviation = torch.linalg.matrix_norm(w.mT @ w - torch.eye(w.shape[1], dtype=w.dtype, device=w.device))
    if deviation <= _OFF_MANIFOLD:
        return w
    warnings.warn(
        f"StiefelOptimizer: a parameter of shape {tuple(w.shape)} does not have orthonormal columns "
        f"(||W^T W - I|| = {deviation:.3g}) and is replaced by its polar factor; call orthonormalize() before",
        stacklevel=4,
    )
    return _full_rank_polar(w, f"a parameter of shape {tuple(w.shape)}")


def _full_rank_polar(w: torch.Tensor, what: str) -> torch.Tensor:
    if not torch.isfinite(w).all():
        raise InvalidArgumentError(f"{what}: it holds a NaN or an Inf")
    s = torch.linalg.svdvals(w)
    if s[-1] <= _RANK_TOLERANCE * s[0]:
        raise InvalidArgumentError(
            f"{what}: its columns are linearly dependent; no orthonormal ones are nearest"
        )
    return polar(w)


def _check_number(value: Any, what: str, end: float) -> None:
    plain = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not plain or not 0 <= float(value) < end:
        limit = "a finite number, 0 or more" if end == math.inf else f"a number from 0 to less than {end:g}"
        raise InvalidArgumentError(f"{what}: expected {limit}, got {value!r}")


def _check_matrix(parameter: Any, what: str) -> None:
    if not isinstance(parameter, torch.Tensor):
        raise DtypeError(f"{what}: expected a tensor, got {type(parameter).__name__}")
    if any(base.__name__ == "DTensor" for base in type(parameter).__mro__):
        raise DtypeError(f"{what}: a DTensor holds a part of its matrix, and a step needs the whole")
    if parameter.dtype not in _DTYPES:
        raise DtypeError(
            f"{what}: expected float32 or float64, got {str(parameter.dtype).removeprefix('torch.')}"
        )
    shape = tuple(parameter.shape)
    if len(shape) != 2 or shape[1] == 0:
        raise InvalidArgumentError(f"{what}: expected a matrix (n, p) with n >= p >= 1, got shape {shape}")
    if shape[0] < shape[1]:
        raise InvalidArgumentError(
            f"{what}: {shape[1]} columns of {shape[0]} elements can't be orthonormal: expected n >= p, got "
            f"shape {shape}; keep the transpose"
        )


def _check_gradient(parameter: torch.Tensor, what: str) -> None:
    gradient = parameter.grad
    if gradient is None:
        return
    if gradient.layout != torch.strided:
        raise InvalidArgumentError(f"{what}: its gradient is sparse")
    if not torch.isfinite(gradient).all():
        raise InvalidArgumentError(f"{what}: its gradient holds a NaN or an Inf; no parameter was changed")
