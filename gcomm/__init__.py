"""gcomm: compressed collectives.

``gcomm.all_reduce(tensor, codec="fp8_e4m3")`` is ``torch.distributed.all_reduce(tensor)`` with a quarter of
the bytes on the wire. See :mod:`gcomm.verbs` for the calls, :class:`Communicator` for ranks without torch,
:func:`codec` for wire formats and :mod:`gcomm.errors` for what can go wrong.
"""

from __future__ import annotations

from . import _native, errors, gift, gnmr, mapl, runtimes
from ._codec import Codec, codec
from .communicator import Communicator
from .registry import codecs, isas, transports
from .verbs import (
    all_gather_into_tensor,
    all_reduce,
    all_reduce_coalesced,
    all_to_all_single,
    barrier,
    broadcast,
    recv,
    reduce_scatter_tensor,
    send,
)
from .work import Work

__version__: str = _native.version()

__all__ = [
    "Codec",
    "Communicator",
    "Work",
    "__version__",
    "all_gather_into_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "codec",
    "codecs",
    "errors",
    "gift",
    "gnmr",
    "isas",
    "mapl",
    "recv",
    "reduce_scatter_tensor",
    "runtimes",
    "send",
    "transports",
]
