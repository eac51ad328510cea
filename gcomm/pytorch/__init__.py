"""gcomm in PyTorch.

Everything here needs torch, which is imported when the first name is used: ``import gcomm`` stays cheap, and
works without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rules import DIRECT, Rule, Rules

__all__ = ["DIRECT", "Rule", "Rules"]

_HOMES = {
    "DIRECT": "rules",
    "Rule": "rules",
    "Rules": "rules",
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
