"""The collectives as JAX primitives: what they give, how they are compiled, differentiated and batched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .. import _native
from .._arguments import AVG, SUM
from ..errors import UnsupportedError
from ._effect import CallOrder, lower_in_order

for _target, _handler in _native.xla_handlers().items():
    jax.ffi.register_ffi_target(_target, _handler, platform="cpu")

# Of every call: comm and own_codec (numbers for the extension), op, codec, key ("": none), timeout_s (0: the
# communicator's) and size (ranks).
Params = dict[str, Any]


def _define(name: str, shape: Callable[[tuple[int, ...], int], tuple[int, ...]]) -> Primitive:
    primitive = Primitive(f"gcomm_{name}")

    def abstract(x: Any, **params: Any) -> tuple[Any, set[CallOrder]]:
        result = x.update(shape=shape(x.shape, params["size"]))
        return result, {CallOrder(params["comm"])}

    @functools.lru_cache(maxsize=256)
    def compiled(**params: Any) -> Any:
        return jax.jit(functools.partial(primitive.bind, **params))

    def lower(ctx: Any, x: Any, *, size: int, **attributes: Any) -> Any:
        return lower_in_order(ctx, primitive.name, CallOrder(attributes["comm"]), x, attributes)

    def refuse(ctx: Any, x: Any, **_: Any) -> Any:
        platforms = ", ".join(ctx.module_context.platforms)
        raise UnsupportedError(f"gcomm.jax.{name}: only for arrays on the CPU in this version, not {platforms}")

    primitive.def_effectful_abstract_eval(abstract)
    primitive.def_impl(lambda x, **params: compiled(**params)(x))
    mlir.register_lowering(primitive, lower, platform="cpu")
    mlir.register_lowering(primitive, refuse)
    return primitive


all_reduce_p = _define("all_reduce", lambda shape, size: shape)
all_gather_p = _define("all_gather", lambda shape, size: (shape[0] * size, *shape[1:]))
reduce_scatter_p = _define("reduce_scatter", lambda shape, size: (shape[0] // size, *shape[1:]))


# ---- derivatives: over the values of all ranks all are linear, so each has another one as its transpose ------


def _of_derivative(params: Params) -> Params:
    """A derivative has the codec's state under a key of its own."""
    return {**params, "key": params["key"] and params["key"] + ".grad"}


def _linear(primitive: Primitive, transpose: Callable[[Any, Params], Any]) -> None:
    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        (x,), (t,) = primals, tangents
        y = primitive.bind(x, **params)
        if isinstance(t, ad.Zero):
            return y, ad.Zero.from_primal_value(y)
        return y, primitive.bind(t, **_of_derivative(params))

    def transposed(cotangent: Any, x: Any, **params: Any) -> Any:
        if isinstance(cotangent, ad.Zero):
            return (ad.Zero(x.aval),)
        return (transpose(cotangent, _of_derivative(params)),)

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transposed


def _transpose_of_scatter(cotangent: Any, params: Params) -> Any:
    gathered = all_gather_p.bind(cotangent, **{**params, "op": SUM})
    return gathered / params["size"] if params["op"] == AVG else gathered


_linear(all_reduce_p, lambda ct, params: all_reduce_p.bind(ct, **params))
_linear(all_gather_p, lambda ct, params: reduce_scatter_p.bind(ct, **{**params, "op": SUM}))
_linear(reduce_scatter_p, _transpose_of_scatter)


# ---- vmap: one call for the whole batch ----------------------------------------------------------------------


def _batched(primitive: Primitive) -> None:
    def rule(arrays: Any, axes: Any, **params: Any) -> Any:
        ((x,), (axis,)) = arrays, axes
        if params["key"]:
            raise UnsupportedError(
                f"{primitive.name.replace('_', '.jax.', 1)}: vmap over a call with key={params['key']!r}: the "
                "codec's state belongs to an array of one shape; call it outside of vmap, or without a key"
            )
        # Ranks' parts lie along the first axis.
        x = jnp.moveaxis(x, axis, -1)
        return primitive.bind(x, **params), x.ndim - 1

    batching.primitive_batchers[primitive] = rule


for _primitive in (all_reduce_p, all_gather_p, reduce_scatter_p):
    _batched(_primitive)
