"""Makes "gcomm" a name that ``torch.distributed.init_process_group`` knows.

torch calls :func:`register` at the end of ``import torch``, by the entry point ``torch.backends`` (unless
TORCH_DEVICE_BACKEND_AUTOLOAD=0). What the backend needs is imported when a group is made.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Registers the backend; nothing happens where it is already, or where torch has no distributed package."""
    import torch.distributed

    dist: Any = torch.distributed
    if dist.is_available() and not hasattr(dist.Backend, "GCOMM"):
        dist.Backend.register_backend("gcomm", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(torch_options: Any, options: Any) -> Any:
    from .pytorch.backend import create

    return create(torch_options, options)
