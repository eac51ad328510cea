"""DistributedDataParallel's gradients through gcomm: a communication hook and its state.

No ``from __future__ import annotations`` here: DistributedDataParallel looks at the hook's own annotations.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .._arguments import parse_int, parse_timeout
from .._arrays import Where
from .._call import Timeout
from .._codec import Codec, check_state, state_bytes
from .._gnmr_controller import Controller
from ..communicator import Communicator
from ..errors import (
    AbortedError,
    ClosedError,
    CodecError,
    DtypeError,
    GcommError,
    InvalidArgumentError,
    MismatchError,
    NonFiniteError,
    PeerLostError,
    TimeoutError,
    UnsupportedError,
)
from ._bucket import DTYPES, Plan, make_plan
from ._control import Control
from ._flight import Flight, Sample
from ._model import Parameters, find_ddp, unwrapped
from .rules import Rules
from .stats import Callback, Statistics

__all__ = ["DDPState", "ddp_hook"]

_STATE_VERSION = 1
_RESTART = (
    "; start all ranks again from the last checkpoint, which should hold DDPState.state_dict() of each rank"
)
_RECOVERABLE = (MismatchError, NonFiniteError)
# What to do about a failure, after what it was.
_ADVICE: dict[type[GcommError], str] = {
    PeerLostError: _RESTART,
    TimeoutError: _RESTART,
    AbortedError: _RESTART,
    ClosedError: _RESTART,
    MismatchError: "; give all ranks the same model and the same arguments of DDPState",
    NonFiniteError: "; this step's gradients are not averaged: zero them and go on, all ranks alike",
}


class DDPState:
    """What :func:`ddp_hook` needs, one for each DistributedDataParallel.

    ``ddp.register_comm_hook(DDPState("nvfp4", model), ddp_hook)`` is all that a training script changes.

    Parameters
    ----------
    codec : str, Codec or None
        The main codec, as for :func:`gcomm.codec`; None: exact.
    model : torch.nn.Module, optional
        The model, wrapped or not, whose parameters' names are the keys of codecs with state. If not given, the
        DistributedDataParallel that the first bucket belongs to is looked for.
    group : ProcessGroup or Communicator, optional
        The ranks; DistributedDataParallel's own group if not given. Connections of their own are made at the
        first backward, except where a :class:`gcomm.Communicator` is given.
    controller : gcomm.gnmr.Controller, optional
        Observes the norm of each parameter's average before the optimiser sees it: a clip or skip acts on the
        gradient of this step, and under recovery the parameter travels in a higher wire format
        (docs/gnmr.md). Its state is its own: save and load it beside this one's. One per DDPState.
    rules : sequence of (pattern, codec), or mapping, optional
        Codecs by parameters' names; see :class:`gcomm.pytorch.Rules`, which also says what the defaults are.
    warmup_steps : int
        So many first steps are exact.
    error_feedback : bool
        Adds ``ef=1`` to all codecs given as text: what was lost is kept by parameter and added to the next
        step.
    timeout : float or timedelta, optional
        Seconds for each call; the communicator's default (5 minutes) if not given.
    error_every : int
        Each so many steps the relative error of the averages is estimated, from a sample of each parameter's
        elements that also travels exactly. 0: never.
    error_samples : int
        Elements of each parameter in that sample.

    Raises
    ------
    gcomm.errors.CodecError
        A codec's text names something unknown.
    gcomm.errors.InvalidArgumentError, gcomm.errors.DtypeError
        Another argument is wrong.
    """

    def __init__(
        self,
        codec: str | Codec | None,
        model: nn.Module | None = None,
        group: Any = None,
        controller: Any = None,
        rules: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        warmup_steps: int = 0,
        error_feedback: bool = False,
        timeout: Timeout = None,
        error_every: int = 100,
        error_samples: int = 1024,
    ) -> None:
        if controller is not None and not isinstance(controller, Controller):
            raise DtypeError(
                f"DDPState: controller: expected a gcomm.gnmr.Controller, got {type(controller).__name__}"
            )
        if model is not None and not isinstance(model, nn.Module):
            raise DtypeError(f"DDPState: model: expected a torch.nn.Module, got {type(model).__name__}")
        self._rules = Rules(codec, rules, error_feedback=error_feedback)
        self._model = model
        self._group = group
        self._comm = group if isinstance(group, Communicator) else None
        self._warmup_steps = parse_int(warmup_steps, Where("DDPState", "warmup_steps", None), 0, 2**62)
        self._error_every = parse_int(error_every, Where("DDPState", "error_every", None), 0, 2**62)
        self._error_samples = parse_int(error_samples, Where("DDPState", "error_samples", None), 1, 2**31)
        self._seconds = parse_timeout(timeout, Where("DDPState", "timeout", None)) or 0.0
        self._names: Parameters | None = None  # of the model that was given
        self._watched: Parameters | None = None  # of what DistributedDataParallel wraps
        self._seen: set[int] | None = set()  # parameters in the buckets so far; None once all of them were
        self._plans: dict[tuple[int, bool], Plan] = {}
        self._step = 0
        self._complete = False  # a step is, and its statistics are not yet
        self._firsts = 0  # buckets in this step that were called the first
        self._ending = False  # _backward_done will be called
        self._pending: list[torch.futures.Future[torch.Tensor]] = []
        self._statistics = Statistics()
        self._control = None if controller is None else Control(controller, self._statistics)
        self._lock = threading.Lock()
        self._failures: list[GcommError] = []

    # ---- asking ---------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps whose gradients were averaged so far (accumulation without synchronisation counts none)."""
        return self._step

    @property
    def stats(self) -> dict[str, Any]:
        """Sums over all steps so far, as plain numbers.

        steps, raw_bytes (what the same calls send uncompressed), wire_bytes (sent by this rank, everything
        counted), ratio, error (relative, of all averages together, as last measured; None before), encode_s,
        comm_s, decode_s (the communication thread's time), and parameters: by name the same figures, without
        messages' headers, and codec, calls and raw_path_calls. A call's times are shared out among its tensors
        by their bytes.
        """
        return self._statistics.as_dict()

    def report(self) -> list[dict[str, Any]]:
        """What gift made of each parameter; see :meth:`gcomm.Codec.report`."""
        return [row for codec in self._rules.codecs.values() for row in codec.report()]

    def add_callback(self, callback: Callback, *, every: int = 1, parameters: bool = False) -> None:
        """Has ``callback(step, values)`` called after a step's gradients are averaged.

        Parameters
        ----------
        callback : callable
            Of the number of steps done and a mapping of names to floats: raw_bytes, wire_bytes, ratio,
            encode_s, comm_s and decode_s of this step, and error where it was measured.
            :func:`gcomm.pytorch.log_to` makes one for TensorBoard. What it raises, ``backward()`` raises.
        every : int
            Only each so many steps.
        parameters : bool
            Also ``error/NAME`` of each parameter.
        """
        number = parse_int(every, Where("add_callback", "every", None), 1, 2**62)
        self._statistics.add_callback(callback, number, parameters)

    # ---- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The codecs' state of this rank, by parameters' names, and the number of steps.

        Plain objects: {"version", "rank", "world_size", "step", "codecs": {text: bytes}}. Residuals differ
        between ranks: every rank saves and loads its own. How DistributedDataParallel packs its buckets makes
        no difference.
        """
        rank, size = self._identity()
        codecs = {spec: codec._native.save_state() for spec, codec in self._rules.codecs.items()}
        return {
            "version": _STATE_VERSION,
            "rank": rank,
            "world_size": size,
            "step": self._step,
            "codecs": codecs,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state_dict`` returned on this rank: same size of group, same codecs.

        Raises
        ------
        gcomm.errors.CodecError
            The state is another rank's, another group's, of other codecs, or damaged. Nothing is changed then.
        """
        rank, size = self._identity()
        what = "DDPState"
        check_state(state, what, {"version": _STATE_VERSION}, rank)
        if state.get("world_size") != size or state.get("rank") != rank:
            raise CodecError(
                f"{what}: the state is that of rank {state.get('rank')!r} of {state.get('world_size')!r}, and "
                f"this is rank {rank} of {size}; every rank loads its own, in a group of the same size",
                rank,
            )
        step, saved = state.get("step"), state.get("codecs")
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise CodecError(f"{what}: 'step': expected a number of steps, got {step!r}", rank)
        if not isinstance(saved, Mapping):
            raise CodecError(f"{what}: 'codecs': expected a dict, got {type(saved).__name__}", rank)
        # Those for parameters that are to be exact are made when they are first met.
        for spec in saved:
            if spec not in self._rules.codecs and not _is_exact(spec):
                raise CodecError(
                    f"{what}: the state holds codec {spec!r}; this one was made with "
                    f"{', '.join(self._rules.codecs)}: give it the codec and the rules that it was saved with",
                    rank,
                )
        missing = [spec for spec in self._rules.codecs if spec not in saved and not _is_exact(spec)]
        if missing:
            raise CodecError(f"{what}: the state holds nothing of codec {missing[0]!r}", rank)
        codecs = {spec: codec for spec, codec in self._rules.codecs.items() if spec in saved}
        before = {spec: codec._native.save_state() for spec, codec in codecs.items()}
        try:
            for spec, codec in codecs.items():
                codec._native.load_state(state_bytes(saved[spec], f"{what}: codec {spec!r}", rank))
        except CodecError:
            for spec, codec in codecs.items():
                codec._native.load_state(before[spec])
            raise
        self._step = step

    def _identity(self) -> tuple[int, int]:
        if self._comm is not None:
            return self._comm.rank, self._comm.size
        if not dist.is_initialized():
            raise InvalidArgumentError(
                "DDPState: torch.distributed has no default group; call init_process_group first"
            )
        group = self._own_group(None)
        return dist.get_rank(group), dist.get_world_size(group)

    def _own_group(self, ddp: DistributedDataParallel | None) -> Any:
        if self._group is not None:
            return self._group
        if ddp is None and isinstance(self._model, DistributedDataParallel):
            ddp = self._model
        elif ddp is None and self._model is not None:
            first = next(self._model.parameters(), None)
            ddp = None if first is None else find_ddp(first)
        return None if ddp is None else ddp.process_group

    # ---- the hook's side ------------------------------------------------------------------------------------

    def _reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Starts the averaging of a bucket."""
        buffer = bucket.buffer()
        try:
            if self._watched is None:
                self._adopt(bucket)
            if bucket.index() == 0:
                self._refuse_change()
            plan = self._plan(bucket, buffer)
        except Exception as error:
            if self._comm is not None:
                # The others wait for this bucket.
                self._comm.abort(f"rank {self._comm.rank} left its backward: {error}")
            raise
        sample = self._sample(plan, buffer)
        last = bucket.is_last()
        step = self._step
        self._firsts += bucket.index() == 0
        if last:
            self._step_complete()
        assert self._comm is not None
        flight = Flight(
            self._comm, plan, buffer, self._statistics, self._fail, control=self._control, step=step
        )
        flight.start(self._seconds, sample)
        self._pending.append(flight.future)
        if last or not self._ending:
            try:
                _queue_callback(self._backward_done)
                self._ending = True
            except RuntimeError:
                # Not in a backward (in a join, say): there is nobody to raise but the future.
                self._pending.clear()
                if last:
                    return flight.future.then(self._checked)
        return flight.future

    def _sample(self, plan: Plan, buffer: torch.Tensor) -> Sample | None:
        """What to measure in this step, chosen alike on all ranks."""
        if self._error_every == 0 or self._step % self._error_every or self._warming_up:
            return None
        if buffer.dtype not in DTYPES or buffer.numel() == 0:
            return None
        return Sample(plan, buffer, self._error_samples, self._step)

    def _step_complete(self) -> None:
        self._step += 1
        self._complete = True
        self._firsts = 0

    @property
    def _warming_up(self) -> bool:
        return self._step < self._warmup_steps

    def _adopt(self, bucket: Any) -> None:
        """Before the first bucket: the model, its names, and the connections."""
        parameters = bucket.parameters()
        ddp = self._model if isinstance(self._model, DistributedDataParallel) else find_ddp(parameters[0])
        ignored: set[str] = set() if ddp is None else set(ddp.parameters_to_ignore)
        if self._model is not None:
            self._names = Parameters(unwrapped(self._model))
        elif ddp is not None:
            self._names = Parameters(ddp.module, ignored)
        if self._comm is None:
            group = self._own_group(ddp)
            self._comm = Communicator.from_torch(group, timeout=self._seconds or None)
        if ddp is not None and dist.get_world_size(ddp.process_group) != self._comm.size:
            raise InvalidArgumentError(
                f"DDPState: group has {self._comm.size} ranks, but DistributedDataParallel's has "
                f"{dist.get_world_size(ddp.process_group)}; give DDPState the same group, or none"
            )
        self._watched = self._names if ddp is None else Parameters(ddp.module, ignored)
        if self._watched is None:
            self._watched = Parameters(nn.Module())
            self._seen = None
        elif ddp is None:
            self._seen = None  # the model given may be more than what is wrapped

    def _refuse_change(self) -> None:
        assert self._watched is not None
        change = self._watched.change()
        if change:
            raise InvalidArgumentError(
                f"ddp_hook: the model has changed since its first backward: {change}. DistributedDataParallel "
                "does not follow such changes: wrap the model again and register a new DDPState (its "
                "load_state_dict takes this one's state)"
            )

    def _plan(self, bucket: Any, buffer: torch.Tensor) -> Plan:
        if buffer.is_sparse:
            raise UnsupportedError("ddp_hook: sparse gradients; build the embedding with sparse=False")
        parameters = bucket.parameters()
        exact = self._warming_up or buffer.dtype not in DTYPES
        plan = self._plans.get((bucket.index(), exact))
        if plan is None or plan.parameters != tuple(map(id, parameters)):
            names = [self._name_of(parameter) for parameter in parameters]
            codec_for = _exact if exact else self._codec_for
            plan = make_plan(parameters, bucket.gradients(), buffer.data_ptr(), names, codec_for)
            self._plans[bucket.index(), exact] = plan
            for part in plan.parts:
                text = "exact" if part.codec is None else part.codec.spec
                part.sums = self._statistics.group(part.names, text)
        if self._seen is not None and self._watched is not None:
            self._seen.update(plan.parameters)
            if bucket.is_last():
                missing = self._watched.missing(self._seen)
                self._seen = None
                if missing:
                    raise InvalidArgumentError(
                        f"ddp_hook: parameter {missing[0]!r} requires a gradient, but DistributedDataParallel "
                        "does not average it: the model has changed since it was wrapped; wrap it again"
                    )
        return plan

    def _name_of(self, parameter: torch.Tensor) -> str | None:
        if self._names is None:
            return None
        name = self._names.name_of(parameter)
        if name is None:
            raise InvalidArgumentError(
                f"ddp_hook: a bucket holds a parameter of shape {tuple(parameter.shape)} that the model of "
                "this DDPState does not have; make one DDPState for each DistributedDataParallel, with its own "
                "model"
            )
        return name

    def _codec_for(self, name: str | None, parameter: torch.Tensor) -> Codec:
        codec = self._rules.codec_for(name or "", parameter)
        if name is None and _needs_keys(codec.spec):
            raise InvalidArgumentError(
                f"ddp_hook: codec {codec.spec!r} keeps state by parameters' names, and this bucket's "
                "parameters have none; give the model: DDPState(codec, model=model)"
            )
        return codec

    def _fail(self, error: GcommError) -> None:
        with self._lock:
            self._failures.append(error)

    def _failure(self) -> GcommError | None:
        """What went wrong in this step, with what to do about it."""
        with self._lock:
            failures, self._failures = self._failures, []
        if not failures:
            return None
        # Calls after the first failure only say that the communicator is closed.
        first = next((each for each in failures if not isinstance(each, ClosedError)), failures[0])
        advice = _ADVICE.get(type(first), "")
        return type(first)(f"ddp_hook, step {self._step}: {first}{advice}", first.rank)

    def _backward_done(self) -> None:
        """Before DistributedDataParallel's own end of the backward, which waits for the same futures, and then
        for collectives of torch's that have no words for a lost rank.
        """
        pending, self._pending = self._pending, []
        for future in pending:
            future.wait()
        with self._lock:
            fatal = any(not isinstance(each, _RECOVERABLE) for each in self._failures)
        if fatal:
            self._end_backward()
        else:
            # After it: a training loop that goes on finds DistributedDataParallel done with this step.
            _queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self._ending = False
        # The first backward of a static graph calls every bucket the first one, and none the last.
        if self._firsts > 1:
            self._step_complete()
        failure = self._failure()
        if failure is not None:
            raise failure
        if self._complete:
            self._complete = False
            self._statistics.end_step(self._step)

    def _checked(self, future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        failure = self._failure()
        if failure is not None:
            raise failure
        return future.value()


def ddp_hook(
    state: DDPState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # (torch's annotations don't say it is public)
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket's gradients over the ranks, in place, each parameter with its codec.

    Register it with ``ddp.register_comm_hook(gcomm.pytorch.DDPState(...), gcomm.pytorch.ddp_hook)``. The bits
    are the same on all ranks. What goes wrong is raised by ``backward()``, on every rank that is left: the
    classes of :mod:`gcomm.errors`.

    Parameters
    ----------
    state : DDPState
    bucket : torch.distributed.GradBucket
        Dense gradients on the CPU. float32, bfloat16 and float16 travel in their codecs, other types exactly.

    Returns
    -------
    torch.futures.Future of torch.Tensor
        The bucket's own buffer, once the averages are in it.
    """
    if not isinstance(state, DDPState):
        raise DtypeError(
            f"ddp_hook: its state is a {type(state).__name__}; register it as "
            "ddp.register_comm_hook(gcomm.pytorch.DDPState(codec, model), gcomm.pytorch.ddp_hook)"
        )
    return state._reduce(bucket)


def _exact(name: str | None, parameter: torch.Tensor) -> None:
    return None


def _needs_keys(spec: str) -> bool:
    head, *options = spec.split(":")
    return head.startswith("gift+") or "ef=1" in options or "rounding=stochastic" in options


def _is_exact(spec: Any) -> bool:
    return isinstance(spec, str) and spec.split(":")[0] in ("fp32", "bf16", "fp16")


def _queue_callback(function: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(function)
