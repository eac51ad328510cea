"""Collectives inside ``jax.jit``, on the CPU.

``gcomm.jax.all_reduce(x, comm=comm)`` is a call like any other to JAX: it can be compiled, scanned over,
differentiated and batched. It moves bytes by gcomm's own threads; Python and its lock have no part in it.

The calls of one communicator are carried out in program order on every rank, within a compiled function and
from one to the next, also where no data connects them: JAX threads a token through them (an ordered effect).
All ranks therefore run the same programs in the same order, from one thread for each communicator.

An error comes out of JAX as ``jax.errors.JaxRuntimeError`` with gcomm's text, where the result is first waited
for; see :func:`recover` for how to go on.
"""

from __future__ import annotations

from typing import Any

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError(f"gcomm.jax needs jax ({error}): pip install 'gcomm[jax]'") from error

from .. import _native
from .._arguments import SUM, parse_key, parse_op, parse_timeout
from .._arrays import Where
from .._call import CodecLike, Timeout
from .._codec import Codec
from .._torch_group import resolve
from ..communicator import Communicator
from ._effect import drop_failed
from ._primitives import all_gather_p, all_reduce_p, reduce_scatter_p

__all__ = ["all_gather", "all_reduce", "recover", "reduce_scatter"]

_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def all_reduce(
    x: Any,
    op: Any = "sum",
    *,
    comm: Any,
    codec: CodecLike = "fp8_e4m3",
    key: str | None = None,
    timeout: Timeout = None,
) -> jax.Array:
    """Sum or average over all ranks, the same bits on every rank.

    Parameters
    ----------
    x : jax.Array of float32, bfloat16 or float16
        Of one shape and type on all ranks.
    op : {"sum", "avg"}
        Or torch's ReduceOp.SUM and .AVG.
    comm : Communicator, mpi4py communicator or torch process group
        Whose ranks. It must live as long as compiled code is to use it.
    codec : str, gcomm.Codec or None
        What travels, as for :func:`gcomm.all_reduce`. None: exact. A Codec that compiled code uses lives as
        long as the process.
    key : str, optional
        The name of the array, for codecs with state; such a call can't be vmapped. Derivatives have the key
        with ".grad" behind it.
    timeout : float or timedelta, optional
        Seconds for the call; the communicator's default (5 minutes) if not given.

    Returns
    -------
    jax.Array
        Like x. Its derivative is the same sum (or average) of the tangents, and so is the transpose, in the
        same codec: what the codec rounds counts as not rounded.

    Raises
    ------
    gcomm.errors.InvalidArgumentError, DtypeError, CodecError
        When it is traced. Nothing was sent.
    jax.errors.JaxRuntimeError
        When it runs: what :func:`gcomm.all_reduce` raises, in its words.
    """
    x, params = _arguments("all_reduce", x, op=op, comm=comm, codec=codec, key=key, timeout=timeout)
    result: jax.Array = all_reduce_p.bind(x, **params)
    return result


def all_gather(
    x: Any,
    *,
    comm: Any,
    codec: CodecLike = None,
    key: str | None = None,
    timeout: Timeout = None,
) -> jax.Array:
    """The arrays of all ranks, one after the other along the first axis.

    x has one axis or more; the result's first axis is as many times longer as there are ranks. Its transpose is
    :func:`reduce_scatter` with op "sum". Everything else is as in :func:`all_reduce`.
    """
    x, params = _arguments("all_gather", x, op="sum", comm=comm, codec=codec, key=key, timeout=timeout)
    if x.ndim == 0:
        Where("gcomm.jax.all_gather", "x", None).invalid("expected one axis or more, got a scalar")
    result: jax.Array = all_gather_p.bind(x, **params)
    return result


def reduce_scatter(
    x: Any,
    op: Any = "sum",
    *,
    comm: Any,
    codec: CodecLike = "fp8_e4m3",
    key: str | None = None,
    timeout: Timeout = None,
) -> jax.Array:
    """The caller's part, along the first axis, of the sum or average over all ranks.

    x's first axis is divisible by the number of ranks. The transpose is :func:`all_gather` (for "avg", divided
    by the number of ranks). Everything else is as in :func:`all_reduce`.
    """
    x, params = _arguments("reduce_scatter", x, op=op, comm=comm, codec=codec, key=key, timeout=timeout)
    if x.ndim == 0 or x.shape[0] % params["size"]:
        Where("gcomm.jax.reduce_scatter", "x", None).invalid(
            f"expected a first axis that {params['size']} ranks can divide, got shape {x.shape}"
        )
    result: jax.Array = reduce_scatter_p.bind(x, **params)
    return result


def recover(comm: Any) -> None:
    """Lets this thread's calls on a communicator go on after one that failed.

    JAX gives the error of a call to all that follow it in program order. Where the communicator is still open
    (a mismatch of arguments, a NaN with ``nonfinite=raise``), all ranks call this once they have seen it. Waits
    until the thread's calls are complete. A new communicator needs no recovery.
    """
    on = _communicator(comm, "gcomm.jax.recover", None)
    number = _native.xla_comm(on._native)
    drop_failed(lambda effect: effect.comm == number)


def _communicator(comm: Any, name: str, timeout: Timeout) -> Communicator:
    if comm is None:
        Where(name, "comm", None).mistyped("expected a gcomm.Communicator, got None")
    on, _ = resolve(comm, name, timeout)
    return on


def _arguments(
    verb: str, x: Any, *, op: Any, comm: Any, codec: CodecLike, key: str | None, timeout: Timeout
) -> tuple[jax.Array, dict[str, Any]]:
    """The array, and the parameters of its primitive."""
    name = f"gcomm.jax.{verb}"
    on = _communicator(comm, name, timeout)

    def where(argument: str) -> Where:
        return Where(name, argument, on.rank)

    # As given: without jax_enable_x64, jax makes float32 of float64 and says nothing.
    given = x.dtype if hasattr(x, "dtype") else jnp.asarray(x).dtype
    if given not in _DTYPES:
        where("x").mistyped(f"expected float32, bfloat16 or float16, got {given}; convert it first")
    x = jnp.asarray(x)
    spec, own = "", 0
    if isinstance(codec, str):
        spec = on._resident_codec(codec, where("codec")).spec
    elif isinstance(codec, Codec):
        own = _native.xla_codec(codec._native)
    elif codec is not None:
        where("codec").mistyped(f"expected a str, a gcomm.Codec or None, got {type(codec).__name__}")
    return x, {
        "comm": _native.xla_comm(on._native),
        "op": SUM if verb == "all_gather" else parse_op(op, where("op")),
        "codec": spec,
        "own_codec": own,
        "key": parse_key(key, where("key")) or "",
        "timeout_s": parse_timeout(timeout, where("timeout")) or 0.0,
        "size": on.size,
    }
