"""A model's parameters: their names, and whether they still are what they were."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Parameters", "find_ddp", "unwrapped"]

_COMPILED = "_orig_mod."  # what torch.compile puts into names


def unwrapped(module: nn.Module) -> nn.Module:
    """What a DistributedDataParallel holds; any other module as it is."""
    if isinstance(module, DistributedDataParallel):
        inner: nn.Module = module.module
        return inner
    return module


def find_ddp(parameter: torch.Tensor) -> DistributedDataParallel | None:
    """The DistributedDataParallel that a parameter belongs to, among all objects there are."""
    for found in gc.get_objects():
        if not issubclass(type(found), DistributedDataParallel):
            continue
        inner = getattr(found, "module", None)  # none in one whose construction failed
        if inner is not None and any(each is parameter for each in inner.parameters()):
            ddp: DistributedDataParallel = found
            return ddp
    return None


class Parameters:
    """The parameters of a module by identity, as they were when this was made.

    Parameters
    ----------
    module : torch.nn.Module
    ignored : collection of str
        Names of parameters that may change.
    """

    def __init__(self, module: nn.Module, ignored: Collection[str] = ()) -> None:
        self._names: dict[int, str] = {}
        self._needed: dict[int, str] = {}
        self._slots: list[tuple[dict[str, Any], str, Any, bool, torch.Size | None, str]] = []
        self._lengths: list[tuple[dict[str, Any], int, str]] = []
        for path, each in module.named_modules():
            where = path.replace(_COMPILED, "").removesuffix("_orig_mod")
            for content in (each._parameters, each._modules):
                self._lengths.append((content, len(content), where))
            for key, parameter in each._parameters.items():
                name = f"{where}.{key}".removeprefix(".")
                if name in ignored:
                    continue
                shape = None if parameter is None else parameter.shape
                self._slots.append((each._parameters, key, parameter, _requires_grad(parameter), shape, name))
                if parameter is not None:
                    self._names.setdefault(id(parameter), name)
                    if parameter.requires_grad:
                        self._needed.setdefault(id(parameter), name)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """The (first) name of a parameter, None if it is not one of them."""
        return self._names.get(id(parameter))

    def change(self) -> str:
        """What is not as it was, in words; empty if nothing."""
        for content, key, parameter, requires_grad, shape, name in self._slots:
            now = content.get(key)
            if now is not parameter:
                return f"parameter {name!r} was " + ("removed" if now is None else "replaced by another tensor")
            if now is None:
                continue
            if now.requires_grad is not requires_grad:
                return f"requires_grad of parameter {name!r} was {requires_grad} and is {now.requires_grad}"
            if now.shape != shape:
                return f"parameter {name!r} had shape {tuple(shape or ())} and has {tuple(now.shape)}"
        for content, length, where in self._lengths:
            if len(content) != length:
                return f"module {where or '(the model itself)'!r} has other parameters or children than before"
        return ""

    def missing(self, seen: Iterable[int]) -> list[str]:
        """The names of parameters that require a gradient and are not among those seen (by ``id``)."""
        known = set(seen)
        return [name for identity, name in self._needed.items() if identity not in known]


def _requires_grad(parameter: Any) -> bool:
    return parameter is not None and bool(parameter.requires_grad)
