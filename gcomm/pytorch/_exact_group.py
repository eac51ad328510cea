"""The calls of a process group that are the wrapped backend's.

torch's own way from a group to its backend would do, but for one thing: of a group that Python derives from,
C++ looks for an override first, and where there is none makes the call *with the GIL held*. gloo's threads may
need the GIL while they have the lock that the call waits for (to destroy a tensor that Python made), and then
both wait for ever. The bindings of a backend release the GIL. So all that C++ looks for is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._group_work import GroupWork


class ExactProcessGroup(dist.ProcessGroup):
    """A group whose calls go to the backend of their tensors' device, as they are."""

    def _backend_of(self, arguments: Iterable[Any]) -> Any:
        tensor = _first_tensor(arguments)
        return self._get_backend(torch.device("cpu") if tensor is None else tensor.device)

    def broadcast(self, *arguments: Any, **options: Any) -> Any:
        """As torch's."""
        return self._backend_of((*arguments, *options.values())).broadcast(*arguments, **options)

    def allgather(self, *arguments: Any, **options: Any) -> Any:
        """As torch's."""
        return self._backend_of((*arguments, *options.values())).allgather(*arguments, **options)

    def send(self, tensors: Sequence[torch.Tensor], *arguments: Any, **options: Any) -> Any:
        """As torch's."""
        return self._backend_of(tensors).send(tensors, *arguments, **options)

    def recv(self, tensors: Sequence[torch.Tensor], *arguments: Any, **options: Any) -> Any:
        """As torch's."""
        return self._backend_of(tensors).recv(tensors, *arguments, **options)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:  # type: ignore[override]
        """As torch's."""
        options = opts if isinstance(opts, dist.BarrierOptions) else dist.BarrierOptions()
        if timeout is not None:
            options.timeout = timeout
        device = options.device or torch.device("cuda" if options.device_ids else "cpu")
        return self._get_backend(device).barrier(options)  # type: ignore[attr-defined]

    def all_to_all_single(  # type: ignore[override]
        self, output: torch.Tensor, *arguments: Any, **options: Any
    ) -> Any:
        """As torch's."""
        return self._backend_of([output]).alltoall_base(output, *arguments, **options)

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """As torch's: several gatherings."""
        more = [] if opts is None else [opts]
        parts = [
            self._backend_of([output])._allgather_base(output, input, *more)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return parts[0] if len(parts) == 1 else GroupWork(parts, list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]


def _first_tensor(arguments: Iterable[Any]) -> torch.Tensor | None:
    for each in arguments:
        if isinstance(each, torch.Tensor):
            return each
        if isinstance(each, (list, tuple)):
            found = _first_tensor(each)
            if found is not None:
                return found
    return None
