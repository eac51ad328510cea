"""Where the parameters' gradients lie in what FSDP2 hands to a reduce-scatter.

FSDP2 copies the gradients of one ``fully_shard``-ed module into a flat buffer, which seen as (ranks, -1) has in
row r, one after the other, each parameter's part for rank r: an equal share of its rows, the last ones padded
with zeros. Parameters without a gradient in a backward are left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from .._codec import Codec
from ..errors import DtypeError, InvalidArgumentError
from .stats import Statistics, _Sums

# What wrappers add to parameters' names.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def needs_keys(spec: str) -> bool:
    """Whether a codec keeps something for each tensor."""
    return spec.startswith("gift+") or ":ef=1" in spec


@dataclass
class Part:
    """What travels in one call: the columns of these parameters."""

    codec: Codec | None
    spans: list[tuple[int, int]]
    names: list[str]
    # Of a parameter that travels alone: its key, and the shape of all ranks' parts of it.
    key: str | None = None
    shape: tuple[int, ...] = (-1,)
    sums: _Sums = field(default_factory=lambda: _Sums((), ""))

    @property
    def numel(self) -> int:
        """Elements of one rank's part."""
        return sum(end - begin for begin, end in self.spans)


class Watched:
    """A ``fully_shard``-ed module's parameters, and which had a gradient since the last reduce-scatter."""

    def __init__(self, module: nn.Module) -> None:
        if not isinstance(module, FSDPModule):
            raise DtypeError(
                f"FSDPReduceScatter: module: expected one that fully_shard was applied to, got a "
                f"{type(module).__name__}"
            )
        groups = module._get_fsdp_state()._fsdp_param_groups
        if len(groups) > 1:
            raise InvalidArgumentError(
                f"FSDPReduceScatter: module: its parameters are in {len(groups)} groups, each with its mesh"
            )
        self.group: Any = groups[0] if groups else None
        self._hooked: set[int] = set()
        self._marked: set[int] = set()
        for each in self.group.modules if self.group is not None else ():
            # After FSDP's own, which makes the unsharded parameters.
            each.register_forward_pre_hook(self._before_forward)

    def _before_forward(self, *_: Any) -> None:
        for i, parameter in enumerate(self.group.fsdp_params):
            unsharded = getattr(parameter, "_unsharded_param", None)
            if unsharded is not None and unsharded.requires_grad and i not in self._hooked:
                self._hooked.add(i)
                unsharded.register_post_accumulate_grad_hook(self._marker(i))

    def _marker(self, index: int) -> Callable[[torch.Tensor], None]:
        def mark(_: torch.Tensor) -> None:
            self._marked.add(index)

        return mark

    def take(self, numel: int, size: int) -> tuple[int, ...]:
        """The parameters in a buffer of so many elements a rank, by index."""
        marked, self._marked = self._marked, set()
        everything = tuple(
            i for i, each in enumerate(self.group.fsdp_params) if each.sharded_param.requires_grad
        )
        for choice in (tuple(sorted(marked)), everything):
            if sum(self.elements(i) for i in choice) == numel:
                return choice
        raise InvalidArgumentError(
            f"FSDPReduceScatter: a gradient of {size} x {numel} elements belongs to no choice of the module's "
            "parameters that is known: was the module changed after this object was made? "
            "set_reduce_scatter_unused_params(True) has FSDP send all of them always"
        )

    def elements(self, index: int) -> int:
        """Elements of one rank's part of a parameter, padding included."""
        return int(self.group.fsdp_params[index].padded_sharded_param_size.numel())

    def name(self, index: int) -> str:
        """The parameter's name in the root module."""
        name: str = self.group.fsdp_params[index]._param_fqn or f"parameter {index}"
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        return name

    def shape(self, index: int, size: int) -> tuple[int, ...]:
        """Shape of all ranks' parts of a parameter, one below the other."""
        part = self.group.fsdp_params[index].padded_sharded_param_size
        return (size * part[0], *part[1:])

    def parts(
        self,
        indices: Sequence[int],
        size: int,
        dtype: torch.dtype,
        codec_for: Callable[[str, torch.Tensor], Codec | None],
        statistics: Statistics,
    ) -> list[Part]:
        """What travels together: parameters of one codec that keeps nothing; the others each alone."""
        parts: list[Part] = []
        shared: dict[str, Part] = {}
        begin = 0
        for i in indices:
            parameter, name = self.group.fsdp_params[i], self.name(i)
            span = begin, begin + self.elements(i)
            begin = span[1]
            codec = codec_for(name, torch.empty(parameter._orig_size, dtype=dtype, device="meta"))
            if codec is not None and needs_keys(codec.spec):
                parts.append(Part(codec, [span], [name], name, self.shape(i, size)))
                continue
            spec = "" if codec is None else codec.spec
            if spec not in shared:
                shared[spec] = Part(codec, [], [])
                parts.append(shared[spec])
            shared[spec].spans.append(span)
            shared[spec].names.append(name)
        for part in parts:
            part.sums = statistics.group(part.names, "exact" if part.codec is None else part.codec.spec)
        return parts
