"""The independent reference: an encoder, error bounds and a replay of the collectives.

Written from docs/wire-format.md. It shares no code with the library, and works by other means where it can:
minifloats are found by brute force over all codes in float64, not by bit tricks. Decoding is
tools/reference_decoder.py; the encoder leans on it only for sizes and for decoded values.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def _load_decoder() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "tools" / "reference_decoder.py"
    spec = importlib.util.spec_from_file_location("reference_decoder", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference_decoder"] = module
    spec.loader.exec_module(module)
    return module


decoder = _load_decoder()
