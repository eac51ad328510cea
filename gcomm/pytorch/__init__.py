"""gcomm in PyTorch.

Everything here needs torch, which is imported when the first name is used: ``import gcomm`` stays cheap, and
works without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ddp import DDPState, ddp_hook
    from .optim import StiefelOptimizer
    from .rules import DIRECT, Rule, Rules
    from .stats import log_to, summary

__all__ = ["DIRECT", "DDPState", "Rule", "Rules", "StiefelOptimizer", "ddp_hook", "log_to", "summary"]

_HOMES = {
    "DDPState": "ddp",
    "DIRECT": "rules",
    "Rule": "rules",
    "Rules": "rules",
    "StiefelOptimizer": "optim",
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
