"""gcomm in PyTorch.

Everything here needs torch; ``import gcomm`` alone does not, and stays cheap. Importing this package makes the
backend "gcomm" known to torch.distributed, also where torch does not read its entry points
(TORCH_DEVICE_BACKEND_AUTOLOAD=0, or gcomm is not installed).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .._torch_backend import register as _register

if TYPE_CHECKING:
    from ._backend_options import BackendOptions
    from .backend import backend_stats
    from .ddp import DDPState, ddp_hook
    from .fsdp import FSDPAllGather, FSDPReduceScatter, FSDPState, compress_fsdp
    from .optim import StiefelOptimizer
    from .rules import DIRECT, Rule, Rules
    from .stats import log_to, summary

__all__ = [
    "DIRECT",
    "BackendOptions",
    "DDPState",
    "FSDPAllGather",
    "FSDPReduceScatter",
    "FSDPState",
    "Rule",
    "Rules",
    "StiefelOptimizer",
    "backend_stats",
    "compress_fsdp",
    "ddp_hook",
    "log_to",
    "summary",
]

_register()

_HOMES = {
    "BackendOptions": "_backend_options",
    "DDPState": "ddp",
    "DIRECT": "rules",
    "FSDPAllGather": "fsdp",
    "FSDPReduceScatter": "fsdp",
    "FSDPState": "fsdp",
    "Rule": "rules",
    "Rules": "rules",
    "StiefelOptimizer": "optim",
    "backend_stats": "backend",
    "compress_fsdp": "fsdp",
    "ddp_hook": "ddp",
    "log_to": "stats",
    "summary": "stats",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
