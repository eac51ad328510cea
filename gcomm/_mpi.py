"""From an mpi4py communicator to one of gcomm: the native transport, or mpi4py's own send and receive."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from . import _native
from .errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from .communicator import Communicator

_TRANSPORTS = ("auto", "mpi", "mpi4py")

# Of MPI, for the attribute that remembers a communicator's gcomm communicator: it goes when MPI's does.
_keyval: int | None = None
_lock = threading.Lock()


def connect(comm: Any, transport: str) -> _native.Comm:
    """Connects the ranks of an mpi4py communicator. Collective."""
    if transport not in _TRANSPORTS:
        raise InvalidArgumentError(f"from_mpi: transport: expected one of {_TRANSPORTS}, got {transport!r}")
    mpi = _checked(comm)
    if transport != "mpi4py":
        # MPI.Comm's handle as the library has it: 4 bytes with MPICH, a pointer with others.
        size = mpi._sizeof(comm)
        handle = mpi._handleof(comm) % 2 ** (8 * size)  # an int of MPICH's may be negative
        try:
            return _native.mpi(handle.to_bytes(size, "little"))
        except UnsupportedError:
            # The same on all ranks: it depends on the library that they run on. With "auto" the name of the
            # transport tells.
            if transport == "mpi":
                raise
    from . import runtimes
    from ._mpi_transport import Mpi4pyRuntime

    return runtimes.connect(Mpi4pyRuntime(mpi, comm), comm.Get_rank(), comm.Get_size(), "mpi4py", 0)


def communicator_of(comm: Any) -> Communicator:
    """The communicator behind a verb's ``group``, made collectively when it is first used."""
    from .communicator import Communicator

    global _keyval  # noqa: PLW0603
    mpi = _checked(comm)
    with _lock:
        if _keyval is None:
            _keyval = mpi.Comm.Create_keyval()
        found: Communicator | None = comm.Get_attr(_keyval)
    # Not under the lock: another thread may make one for another communicator, in another order than here.
    if found is None:
        found = Communicator(connect(comm, "auto"))
        comm.Set_attr(_keyval, found)
    return found


def _checked(comm: Any) -> Any:
    """mpi4py.MPI, after looking at the communicator."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise UnsupportedError(
            f"from_mpi: mpi4py can't be imported ({error}); pip install 'gcomm[mpi]'"
        ) from error
    if not isinstance(comm, MPI.Comm):
        raise TypeError(f"from_mpi: expected a communicator of mpi4py, got {type(comm).__name__}")
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise InvalidArgumentError("from_mpi: MPI is not initialised, or has been finalised")
    if comm == MPI.COMM_NULL:
        raise InvalidArgumentError("from_mpi: comm is MPI.COMM_NULL: this process is not one of its ranks")
    if comm.Is_inter():
        raise InvalidArgumentError("from_mpi: comm is an intercommunicator; merge it first (comm.Merge())")
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UnsupportedError(
            "from_mpi: MPI was not initialised with MPI.THREAD_MULTIPLE, which gcomm's threads need "
            "(mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI is imported)"
        )
    return MPI
