"""What keeps the calls of one communicator in program order: an ordered effect of JAX's.

JAX threads a token through all that has the same ordered effect: within a compiled function, through its loops
and branches, and from one execution to the next. This is the one place that uses what JAX does not publish.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

import jax
from jax.interpreters import mlir

from ..errors import UnsupportedError

try:
    from jax._src import dispatch, effects
    from jax._src.core import abstract_token

    _BASE: type = effects.Effect
    _REGISTRIES = (
        effects.ordered_effects,
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
    )
    _runtime = dispatch.runtime_tokens
    _runtime.current_tokens, _runtime.output_runtime_tokens  # noqa: B018 (that they are there)
except (ImportError, AttributeError) as error:
    raise UnsupportedError(
        f"gcomm.jax: jax {jax.__version__} keeps ordered effects elsewhere than the versions that gcomm knows "
        f"(0.10): {error}"
    ) from error


class CallOrder(_BASE):  # type: ignore[misc]
    """The effect of all calls on one communicator, by the number that compiled programs have for it."""

    def __init__(self, comm: int) -> None:
        self.comm = comm

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallOrder) and other.comm == self.comm

    def __hash__(self) -> int:
        return hash((CallOrder, self.comm))

    def __repr__(self) -> str:
        return f"CallOrder({self.comm})"


for _registry in _REGISTRIES:
    _registry.add_type(CallOrder)


def lower_in_order(ctx: Any, target: str, effect: CallOrder, operand: Any, attributes: dict[str, Any]) -> Any:
    """A custom call of one array and one result that waits for the one before it with the same effect."""
    in_order = ctx.replace(avals_in=[abstract_token, *ctx.avals_in], avals_out=[abstract_token, *ctx.avals_out])
    lower = jax.ffi.ffi_lowering(target, has_side_effect=True)
    token, result = lower(in_order, ctx.tokens_in.get(effect), operand, **attributes)
    ctx.set_tokens_out(mlir.TokenSet({effect: token}))
    return [result]


def drop_failed(mine: Callable[[CallOrder], bool] = lambda effect: True) -> None:
    """Forgets the tokens of executions that failed: what takes one fails with the same error.

    Of the calling thread; waits until its executions are complete.
    """
    for effect, token in list(_runtime.current_tokens.items()):
        if isinstance(effect, CallOrder) and mine(effect) and _failed(token):
            del _runtime.current_tokens[effect]
    for device, token in list(_runtime.output_runtime_tokens.items()):
        if _failed(token):
            del _runtime.output_runtime_tokens[device]


def _failed(token: Any) -> bool:
    try:
        token.block_until_ready()
    except jax.errors.JaxRuntimeError:
        return True
    return False


# Before JAX's own look at them, which would print errors that the program has seen.
atexit.register(drop_failed)
