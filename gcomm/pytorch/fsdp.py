"""FSDP2 (``torch.distributed.fsdp.fully_shard``): gradients, and on request weights, in a codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from .. import verbs
from .._arguments import parse_timeout
from .._arrays import Where
from .._call import Timeout
from .._codec import Codec, check_state, state_bytes
from .._codec import codec as _make
from ..errors import CodecError, DtypeError, InvalidArgumentError, UnsupportedError
from ._fsdp_layout import Part, Watched, needs_keys
from ._group_work import GroupWork, is_sum_or_avg
from .rules import Rules
from .stats import Statistics

__all__ = ["FSDPAllGather", "FSDPReduceScatter", "FSDPState", "compress_fsdp"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_STATE_VERSION = 1


class _Allocates:
    """Buffers as FSDP makes them by default."""

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Memory for a call."""
        return torch.empty(*size, dtype=dtype, device=device)


class FSDPReduceScatter(_Allocates, ReduceScatter):
    """For ``module.set_custom_reduce_scatter``: gradients travel in a codec; their sums are not encoded.

    Parameters
    ----------
    codec : str, Codec or None
        As for :func:`gcomm.codec`; None: exact. ``gift+FORMAT:geometry=factored`` is the only gift that
        reduce-scatter can have (the inverse of a spectral one needs whole matrices).
    module : torch.nn.Module, optional
        The one that ``fully_shard`` was applied to and that this object is set on. Needed for codecs that keep
        something for each parameter (gift, ``ef=1``) and for ``rules``; one object a module then. Without it
        the whole gradient travels in ``codec``, and one object serves any number of modules.
    rules : Rules, sequence of (pattern, codec), or mapping, optional
        Codecs by the parameters' names in the root module; see :class:`gcomm.pytorch.Rules`, also for what the
        defaults are.
    timeout : float or timedelta, optional
        Seconds for each call; the communicator's default (5 minutes) if not given.

    Raises
    ------
    gcomm.errors.CodecError
        A codec's text names something unknown, or a spectral gift.
    gcomm.errors.InvalidArgumentError, gcomm.errors.DtypeError
        The codec or the rules need a module; it is none that ``fully_shard`` was applied to.

    Notes
    -----
    FSDP2's gradients are float32, bfloat16 or float16 (``MixedPrecisionPolicy.reduce_dtype``); float64 ones are
    exact, by torch. The connections are made at the first backward.
    """

    def __init__(
        self,
        codec: str | Codec | None = "fp8_e4m3",
        module: nn.Module | None = None,
        *,
        rules: Rules | Sequence[Any] | Mapping[str, Any] | None = None,
        timeout: Timeout = None,
        _statistics: Statistics | None = None,
    ) -> None:
        self._timeout = parse_timeout(timeout, Where("FSDPReduceScatter", "timeout", None))
        self._statistics = Statistics() if _statistics is None else _statistics
        self._rules = rules if isinstance(rules, Rules) else None
        self._codec: Codec | None = None
        self._watched: Watched | None = None
        if module is None:
            if rules is not None:
                raise InvalidArgumentError(
                    "FSDPReduceScatter: rules go by parameters' names: give module=, too"
                )
            self._codec = _known(codec, "FSDPReduceScatter")
            if self._codec is not None and needs_keys(self._codec.spec):
                raise InvalidArgumentError(
                    f"FSDPReduceScatter: codec {self._codec.spec!r} keeps something for each parameter, by "
                    "name: give module=, too, or use compress_fsdp(model, codec)"
                )
        else:
            self._watched = Watched(module)
            self._rules = self._rules or Rules(codec, rules)  # type: ignore[arg-type]
            for each in self._rules.codecs.values():
                _refuse_spectral(each.spec)
        self._parts: dict[tuple[torch.dtype, tuple[int, ...]], list[Part]] = {}
        self._calls = 0

    @property
    def stats(self) -> dict[str, Any]:
        """As :attr:`FSDPState.stats`."""
        return {**self._statistics.as_dict(), "steps": self._calls}

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Leaves this rank's n elements of the sum or average of ``input_tensor`` (ranks x n) in the output."""
        if not is_sum_or_avg(op):
            raise UnsupportedError(
                "FSDPReduceScatter: FSDP asks for a sum with a factor (set_gradient_divide_factor); "
                "set_force_sum_reduction_for_comms(True) has it multiply by itself"
            )
        self._calls += 1
        if input_tensor.dtype not in _FLOATS:
            exact: dist.Work | None = dist.reduce_scatter_tensor(
                output_tensor, input_tensor, op, group, async_op
            )
            return exact
        rows = input_tensor.view(group.size(), -1)
        sent: list[tuple[Part, torch.Tensor, Any]] = []
        for part in self._plan(rows):
            whole = part.numel == rows.shape[1]
            target = output_tensor if whole else output_tensor.new_empty(part.numel)
            source = rows if whole else torch.cat([rows[:, begin:end] for begin, end in part.spans], 1)
            work = verbs.reduce_scatter_tensor(
                target,
                source.reshape(part.shape),
                op,
                group,
                codec=part.codec,
                key=part.key,
                async_op=True,
                timeout=self._timeout,
            )
            sent.append((part, target, work))

        def finish() -> None:
            for part, target, work in sent:
                if target is not output_tensor:
                    pieces = torch.split(target, [end - begin for begin, end in part.spans])
                    for (begin, end), piece in zip(part.spans, pieces, strict=True):
                        output_tensor[begin:end] = piece
                self._count(part, work.stats)

        every = GroupWork([work for *_, work in sent], [output_tensor], finish)
        if async_op:
            return every
        every.wait()
        return None

    def _plan(self, rows: torch.Tensor) -> list[Part]:
        size, numel = rows.shape
        if self._watched is None:
            name = "gradients"
            if not self._parts:
                spec = "exact" if self._codec is None else self._codec.spec
                sums = self._statistics.group([name], spec)
                self._parts[rows.dtype, ()] = [Part(self._codec, [], [name], sums=sums)]
            part = next(iter(self._parts.values()))[0]
            return [Part(part.codec, [(0, numel)], part.names, sums=part.sums)]
        assert self._rules is not None
        indices = self._watched.take(numel, size)
        parts = self._parts.get((rows.dtype, indices))
        if parts is None:
            parts = self._watched.parts(indices, size, rows.dtype, self._rules.codec_for, self._statistics)
            for each in parts:
                if each.codec is not None:
                    _refuse_spectral(each.codec.spec)
            self._parts[rows.dtype, indices] = parts
        return parts

    def _count(self, part: Part, stats: Mapping[str, Any]) -> None:
        tensors = []
        for begin, end in part.spans:
            share = (end - begin) / max(part.numel, 1)
            raw, wire = (int(stats[name] * share) for name in ("raw_bytes", "wire_bytes"))
            tensors.append((raw, wire, stats["path"] == "raw"))
        self._statistics.add(part.sums, stats, tensors)


class FSDPAllGather(_Allocates, AllGather):
    """For ``module.set_custom_all_gather``: weights as torch gathers them, or in a codec if asked for.

    Parameters
    ----------
    codec : str, Codec or None
        None: exact. A codec *changes the weights* that forward and backward compute with, on all ranks alike;
        the shards that the optimiser updates stay as they are. Codecs that keep something for each tensor are
        refused.
    timeout : float or timedelta, optional
        Seconds for each call in a codec.
    """

    def __init__(self, codec: str | Codec | None = None, *, timeout: Timeout = None) -> None:
        self._codec = _known(codec, "FSDPAllGather")
        self._timeout = parse_timeout(timeout, Where("FSDPAllGather", "timeout", None))
        if self._codec is not None and needs_keys(self._codec.spec):
            raise InvalidArgumentError(
                f"FSDPAllGather: codec {self._codec.spec!r} keeps something for each tensor; weights are "
                "gathered by codecs that do not"
            )

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Leaves every rank's ``input_tensor`` in ``output_tensor``."""
        # Bytes are several parameters' of different types in one.
        if self._codec is None or input_tensor.dtype not in _FLOATS:
            exact: dist.Work | None = dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
            return exact
        work = verbs.all_gather_into_tensor(
            output_tensor, input_tensor, group, codec=self._codec, async_op=async_op, timeout=self._timeout
        )
        return None if work is None else GroupWork([work], [output_tensor])


class FSDPState:
    """What :func:`compress_fsdp` has set on a model: state, statistics, report."""

    def __init__(self, rules: Rules, statistics: Statistics, scatters: Sequence[FSDPReduceScatter]) -> None:
        self._rules = rules
        self._statistics = statistics
        self._scatters = scatters

    @property
    def stats(self) -> dict[str, Any]:
        """Sums over all reduce-scatters so far, as plain numbers; :func:`gcomm.pytorch.summary` shows them.

        steps (backwards), raw_bytes (what the same calls send uncompressed), wire_bytes (sent by this rank,
        everything counted), ratio, encode_s, comm_s, decode_s, and parameters: by name the same figures, codec,
        calls and raw_path_calls. What several parameters sent together is shared out by their sizes. error is
        None: it is not measured here.
        """
        return {**self._statistics.as_dict(), "steps": max((each._calls for each in self._scatters), default=0)}

    def report(self) -> list[dict[str, Any]]:
        """What gift made of each parameter; see :meth:`gcomm.Codec.report`."""
        return [row for codec in self._rules.codecs.values() for row in codec.report()]

    def state_dict(self) -> dict[str, Any]:
        """The codecs' state of this rank, by parameters' names.

        Plain objects: {"version", "rank", "world_size", "codecs": {text: bytes}}. Every rank saves and loads
        its own.
        """
        codecs = {spec: codec._native.save_state() for spec, codec in self._rules.codecs.items()}
        return {**_identity(), "codecs": codecs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state_dict`` returned on this rank, with the same codecs and as many ranks.

        Raises
        ------
        gcomm.errors.CodecError
            It is another rank's, of other codecs, or damaged. Nothing is changed then.
        """
        identity = _identity()
        check_state(state, "FSDPState", identity, identity["rank"])
        saved = state.get("codecs")
        if not isinstance(saved, Mapping) or set(saved) - set(self._rules.codecs):
            given = list(saved) if isinstance(saved, Mapping) else saved
            raise CodecError(
                f"FSDPState: 'codecs': expected those of {', '.join(self._rules.codecs)}, got {given!r}; "
                "compress the model with the codec and the rules that the state was saved with"
            )
        before = {spec: codec._native.save_state() for spec, codec in self._rules.codecs.items()}
        try:
            for spec, each in saved.items():
                self._rules.codecs[spec]._native.load_state(
                    state_bytes(each, f"FSDPState: codec {spec!r}", None)
                )
        except CodecError:
            for spec, each in before.items():
                self._rules.codecs[spec]._native.load_state(each)
            raise


def compress_fsdp(
    model: nn.Module,
    codec: str | Codec | None = "fp8_e4m3",
    *,
    rules: Sequence[Any] | Mapping[str, Any] | None = None,
    error_feedback: bool = False,
    all_gather: str | Codec | None = None,
    timeout: Timeout = None,
) -> FSDPState:
    """Has all ``fully_shard``-ed modules of a model reduce their gradients in a codec.

    Parameters
    ----------
    model : torch.nn.Module
        After ``fully_shard`` was applied to it or to modules in it; before the first forward.
    codec, rules, timeout
        As for :class:`FSDPReduceScatter`, for all modules.
    error_feedback : bool
        Adds ``ef=1`` to all codecs given as text.
    all_gather : str, Codec or None
        As for :class:`FSDPAllGather`; None leaves the gathering of weights as it is.

    Returns
    -------
    FSDPState

    Raises
    ------
    gcomm.errors.InvalidArgumentError
        ``fully_shard`` was applied to nothing in the model.
    gcomm.errors.CodecError
        A codec's text names something unknown, or a spectral gift.
    """
    modules = [each for each in model.modules() if isinstance(each, FSDPModule)]
    if not modules:
        raise InvalidArgumentError("compress_fsdp: model: fully_shard() it, or modules in it, first")
    chosen = Rules(codec, rules, error_feedback=error_feedback)
    statistics = Statistics()
    gather = None if all_gather is None else FSDPAllGather(all_gather, timeout=timeout)
    scatters = []
    for module in modules:
        scatter = FSDPReduceScatter(codec, module, rules=chosen, timeout=timeout, _statistics=statistics)
        scatters.append(scatter)
        module.set_custom_reduce_scatter(scatter)
        if gather is not None:
            module.set_custom_all_gather(gather)
    return FSDPState(chosen, statistics, scatters)


def _known(codec: Any, what: str) -> Codec | None:
    if codec is None:
        return None
    if not isinstance(codec, (str, Codec)):
        raise DtypeError(f"{what}: expected a codec's text, a gcomm.Codec or None, got {type(codec).__name__}")
    made = _make(codec)
    _refuse_spectral(made.spec)
    return made


def _refuse_spectral(spec: str) -> None:
    if spec.startswith("gift+") and ":geometry=factored" not in spec:
        raise CodecError(
            f"codec {spec!r}: FSDP scatters sums in parts, and this geometry needs whole matrices; "
            "geometry=factored works"
        )


def _identity() -> dict[str, int]:
    if not dist.is_initialized():
        raise InvalidArgumentError("FSDPState: torch.distributed has no default group")
    return {"version": _STATE_VERSION, "rank": dist.get_rank(), "world_size": dist.get_world_size()}
