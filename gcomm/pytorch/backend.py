"""A torch.distributed backend: ``init_process_group("gcomm")``.

Sums and averages of large floating-point CPU tensors travel in a codec; everything else is the wrapped
backend's: gloo's, and NCCL's for tensors on CUDA devices.

torch has no way to write a ``Backend`` in Python (C++ would not see what it overrides), but a ``ProcessGroup``:
so a group of ours is one that has the wrapped backends as its own, does its reductions itself, and hands on all
other calls as they are.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .. import _lifecycle
from .._rendezvous import Deadline
from .._torch_group import connect
from ..communicator import Communicator
from ..errors import InvalidArgumentError, UnsupportedError
from ._backend_options import BackendOptions, Settings, agree
from ._backend_tally import Tally, watch
from ._exact_group import ExactProcessGroup
from ._group_work import GroupWork, is_sum_or_avg

__all__ = ["BackendOptions", "GcommProcessGroup", "backend_stats", "create"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class GcommProcessGroup(ExactProcessGroup):
    """A process group whose large sums and averages are compressed; what ``init_process_group`` makes."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        # The constructor with a store makes none that Python can override.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        self._settings = Settings(None, 0, "auto")
        self._comm: Communicator | None = None
        self._gloo: Any = None
        self._tally = Tally()
        self._splits = 0

    # ---- reductions -----------------------------------------------------------------------------------------

    def allreduce(  # type: ignore[override]
        self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> Any:
        """As torch's, in place; see the module."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        options = _options(dist.AllreduceOptions, opts if op is None else op, timeout)
        reason = self._why_exact(tensors, options) if len(tensors) == 1 else "several tensors in one"
        self._count("all_reduce", reason, tensors)
        if reason is not None:
            return self._exact(tensors, lambda backend, copies: backend.allreduce(copies, options))
        work = self._communicator.all_reduce(
            tensors[0], options.reduceOp, codec=self._settings.codec, async_op=True, timeout=self._time(options)
        )
        return GroupWork([work], tensors)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """As torch's, in place. Each tensor is looked at by itself."""
        options = _options(dist.AllreduceCoalescedOptions, opts, None)
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        exact: list[torch.Tensor] = []
        for tensor in tensors:
            reason = self._why_exact([tensor], options)
            self._count("all_reduce_coalesced", reason, [tensor])
            (exact if reason is not None else by_dtype.setdefault(tensor.dtype, [])).append(tensor)
        parts: list[Any] = [
            self._communicator.all_reduce_coalesced(
                each, options.reduceOp, codec=self._settings.codec, async_op=True, timeout=self._time(options)
            )
            for each in by_dtype.values()
        ]
        if exact:
            rest = self._exact(exact, lambda backend, copies: backend.allreduce_coalesced(copies, options))
            if not parts:
                return rest
            parts.append(rest)
        return GroupWork(parts, list(tensors))

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """As torch's ``reduce_scatter_tensor``."""
        options = _options(dist.ReduceScatterOptions, opts, None)
        reason = self._why_exact([input], options)
        self._count("reduce_scatter", reason, [input])
        if reason is None:
            return GroupWork([self._scatter(output, input, options)], [output])
        source = input.contiguous()
        return self._exact(
            [output], lambda backend, copies: backend._reduce_scatter_base(copies[0], source, options)
        )

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Several of them."""
        parts = [
            self.reduce_scatter_single(output, input, opts)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return parts[0] if len(parts) == 1 else GroupWork(parts, list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def reduce_scatter(  # type: ignore[override]
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> Any:
        """As torch's, of a list with a tensor for each rank."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        options = _options(dist.ReduceScatterOptions, opts if op is None else op, timeout)
        alike = len(outputs) == 1 and all(
            each.numel() == outputs[0].numel() and each.dtype == outputs[0].dtype for each in inputs[0]
        )
        reason = self._why_exact(inputs[0], options) if alike else "tensors of different sizes"
        self._count("reduce_scatter", reason, inputs[0])
        if reason is None:
            joined = torch.cat([each.detach().reshape(-1) for each in inputs[0]])
            return GroupWork([self._scatter(outputs[0], joined, options)], list(outputs))
        sources = [[each.contiguous() for each in row] for row in inputs]
        return self._exact(outputs, lambda backend, copies: backend.reduce_scatter(copies, sources, options))

    def _scatter(self, output: torch.Tensor, input: torch.Tensor, options: Any) -> Any:
        return self._communicator.reduce_scatter_tensor(
            output,
            input,
            options.reduceOp,
            codec=self._settings.codec,
            async_op=True,
            timeout=self._time(options),
        )

    # ---- which way ------------------------------------------------------------------------------------------

    def _why_exact(self, tensors: Sequence[torch.Tensor], options: Any) -> str | None:
        """Why these are not compressed, in words; None: they are. All ranks come to the same."""
        first = tensors[0]
        if self.size() == 1:
            return "one rank"
        if self._settings.codec is None:
            return "no codec"
        if not is_sum_or_avg(options.reduceOp):
            return f"op {options.reduceOp.op.name}"
        if first.device.type != "cpu":
            return f"device {first.device.type}"
        if first.layout != torch.strided:
            return "sparse"
        if first.dtype not in _FLOATS:
            return str(first.dtype).removeprefix("torch.")
        if sum(each.nbytes for each in tensors) < self._settings.min_bytes:
            return f"under {self._settings.min_bytes} bytes"
        return None

    def _exact(self, tensors: list[torch.Tensor], call: Callable[[Any, list[torch.Tensor]], Any]) -> Any:
        """A call of the wrapped backend, which takes strides for what they are not."""
        if all(each.layout != torch.strided or each.is_contiguous() for each in tensors):
            return call(self._get_backend(tensors[0].device), tensors)
        for each in tensors:
            if any(stride == 0 and size > 1 for stride, size in zip(each.stride(), each.shape, strict=True)):
                raise InvalidArgumentError(
                    f'backend "gcomm" on rank {self.rank()}: a tensor of shape {tuple(each.shape)} whose '
                    "elements share memory (an expanded view) can't be written"
                )
        copies = [each.detach().contiguous() for each in tensors]
        work = call(self._get_backend(tensors[0].device), copies)

        def copy_back() -> None:
            for to, values in zip(tensors, copies, strict=True):
                if values.data_ptr() != to.data_ptr():
                    to.detach().copy_(values)

        return GroupWork([work], tensors, copy_back)

    def _count(self, verb: str, reason: str | None, tensors: Sequence[torch.Tensor]) -> None:
        nbytes = sum(each.nbytes for each in tensors if each.layout == torch.strided)
        self._tally.add(verb, reason, nbytes)
        if self.size() > 1 and self._settings.codec is not None:
            watch.saw(reason)

    def _time(self, options: Any) -> datetime.timedelta:
        """The call's own timeout, or the group's, which torch keeps in the wrapped backend."""
        own: datetime.timedelta = options.timeout
        if own > datetime.timedelta(0):
            return own
        group: datetime.timedelta = self._gloo.options._timeout
        return group

    @property
    def _communicator(self) -> Communicator:
        assert self._comm is not None
        return self._comm

    # ---- asking and ending ----------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """The name that this backend was asked for by."""
        return "gcomm"

    def split_group(  # noqa: PLR0917
        self,
        new_ranks: Sequence[int],
        timeout: Any = None,
        opts: Any = None,
        group_name: Any = None,
        group_desc: Any = None,
        device_types: Any = None,
    ) -> GcommProcessGroup | None:
        """A group of some of this one's ranks, which all of them call; None on the others."""
        ranks = sorted(new_ranks)
        self._splits += 1
        if self.rank() not in ranks:
            return None
        name = group_name or f"{self.group_name}:split{self._splits}:" + "_".join(map(str, ranks))
        inner = dist.distributed_c10d._DistributedBackendOptions()  # type: ignore[attr-defined]
        inner.store = dist.PrefixStore(f"split/{name}/", self._store)  # type: ignore[attr-defined]
        inner.group_rank, inner.group_size = ranks.index(self.rank()), len(ranks)
        inner.timeout = timeout or self._gloo.options._timeout
        inner.group_id = name
        everybody = self._gloo.options.global_ranks_in_group or range(self.size())
        inner.global_ranks_in_group = [everybody[rank] for rank in ranks]
        group = create(inner, opts if isinstance(opts, BackendOptions) else None, self._settings)
        group._set_group_name(name)  # type: ignore[arg-type]
        group._set_group_desc(group_desc or "undefined")
        return group

    splitGroup = split_group  # noqa: N815 (what C++ looks for)

    def merge_remote_group(self, *_: Any, **__: Any) -> Any:
        """Not offered."""
        raise UnsupportedError('merge_remote_group: backend "gcomm" has none; make a new group')

    mergeRemoteGroup = merge_remote_group  # noqa: N815

    def get_group_store(self) -> Any:
        """Where the group's ranks met."""
        return self._store

    @property
    def stats(self) -> dict[str, Any]:
        """See :func:`backend_stats`."""
        comm = {} if self._comm is None else self._comm.stats
        names = ("raw_bytes", "wire_bytes", "encode_s", "comm_s", "decode_s")
        sums = {name: comm.get(name, 0) for name in names}
        return {
            "codec": self._settings.codec,
            "min_bytes": self._settings.min_bytes,
            "compressed_calls": self._tally.compressed.total(),
            "compressed": dict(self._tally.compressed),
            **sums,
            "ratio": sums["raw_bytes"] / sums["wire_bytes"] if sums["wire_bytes"] else 1.0,
            "exact_calls": self._tally.exact.total(),
            "exact": dict(self._tally.exact),
            "exact_bytes": self._tally.exact_bytes,
        }

    def shutdown(self) -> None:
        """Says goodbye to the peers. ``destroy_process_group`` calls it."""
        watch.tell()
        if self._comm is not None:
            _lifecycle.close_soon(self._comm._native)
        super().shutdown()

    def abort(self) -> None:
        """Fails all that is pending, here and on the peers."""
        if self._comm is not None:
            self._comm.abort("the process group was aborted")
        super().abort()


def backend_stats(group: Any = None) -> dict[str, Any]:
    """What a group of the backend has compressed so far, and what not.

    Parameters
    ----------
    group : ProcessGroup, optional
        The default group if not given.

    Returns
    -------
    dict
        codec and min_bytes (what is compressed); compressed_calls, and compressed (calls by verb); raw_bytes
        (what those calls send uncompressed), wire_bytes (sent by this rank, everything counted), ratio,
        encode_s, comm_s, decode_s; exact_calls, exact (calls by the reason why: "int64", "under 65536 bytes",
        "op MAX"...) and exact_bytes (of the tensors). Only sums and their like (all_reduce, reduce_scatter) are
        counted: all others are always exact.

    Raises
    ------
    gcomm.errors.InvalidArgumentError
        The group is not one of this backend.
    """
    if group is None:
        if not dist.is_initialized():
            raise InvalidArgumentError("backend_stats: torch.distributed has no default group")
        group = dist.group.WORLD
    if not isinstance(group, GcommProcessGroup):
        raise InvalidArgumentError(
            f'backend_stats: {group!r} is not a group of backend "gcomm"; init_process_group("gcomm") makes one'
        )
    return group.stats


def create(torch_options: Any, given: Any, inherited: Settings | None = None) -> GcommProcessGroup:
    """Makes a group; collective. torch calls it.

    Parameters
    ----------
    torch_options
        Store, rank, size and so on, as torch passes them to backends.
    given
        ``pg_options``; None: ``inherited``, else the default group's, else the environment's.

    Raises
    ------
    gcomm.errors.CodecError, gcomm.errors.InvalidArgumentError
        On every rank: a codec or an option is wrong on some rank.
    gcomm.errors.MismatchError
        The ranks' codecs or options differ.
    gcomm.errors.TimeoutError
        Some rank did not come within the group's timeout.
    """
    timeout: datetime.timedelta = torch_options.timeout
    deadline = Deadline(timeout.total_seconds())
    store, rank, size = torch_options.store, torch_options.group_rank, torch_options.group_size
    prefix: Any = dist.PrefixStore  # type: ignore[attr-defined]
    group = GcommProcessGroup(store, rank, size)
    default = dist.group.WORLD if dist.is_initialized() else None
    if inherited is None and isinstance(default, GcommProcessGroup):
        inherited = default._settings
    group._settings = agree(group, given, inherited, deadline)

    kinds = dist.ProcessGroup.BackendType
    group._gloo = gloo = dist.ProcessGroupGloo(prefix("gloo/", store), rank, size, timeout=timeout)
    _register(group, "cpu", kinds.GLOO, gloo, torch_options)
    group._set_default_backend(kinds.GLOO)
    if torch.cuda.is_available() and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        nccl = dist.ProcessGroupNCCL(prefix("nccl/", store), rank, size, options)
        _register(group, "cuda", kinds.NCCL, nccl, torch_options)
    if size > 1 and group._settings.codec is not None:
        native = connect(group, group._settings.transport, deadline, "init_process_group")
        group._comm = Communicator(native)
    return group


def _options(kind: Any, given: Any, timeout: Any) -> Any:
    """Torch's options of a call, from such or from an operation and a timeout."""
    if hasattr(given, "reduceOp"):
        return given
    options = kind()
    if given is not None:
        options.reduceOp = given
    if timeout is not None:
        options.timeout = timeout
    return options


def _register(group: Any, device: str, kind: Any, backend: Any, torch_options: Any) -> None:
    backend.options.global_ranks_in_group = torch_options.global_ranks_in_group
    backend.options.group_name = torch_options.group_id
    backend._set_sequence_number_for_group()
    group._register_backend(torch.device(device), kind, backend)
