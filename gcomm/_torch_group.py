"""From a torch process group to a communicator: rendezvous, and one communicator a group for the verbs."""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import _native
from ._arguments import parse_timeout
from ._arrays import Where
from ._rendezvous import Deadline, distributed, exchange, group_store
from .communicator import Communicator
from .errors import GcommError, InvalidArgumentError, MismatchError, TimeoutError, UnsupportedError

if TYPE_CHECKING:
    from ._call import Timeout

_TRANSPORTS = ("auto", "tcp", "torch", "nccl")

_communicators: weakref.WeakKeyDictionary[Any, Communicator] = weakref.WeakKeyDictionary()
# Held while a communicator is made: two threads that use a group for the first time must make one. One lock a
# group: threads may come to several groups in another order than on other ranks.
_locks: weakref.WeakKeyDictionary[Any, threading.Lock] = weakref.WeakKeyDictionary()
_locks_lock = threading.Lock()


def resolve(group: Any, verb: str, timeout: Timeout) -> tuple[Communicator, Timeout]:
    """The communicator behind a verb's ``group`` argument, and what is left of the call's time.

    It is made collectively at a torch group's first use.
    """
    if isinstance(group, Communicator):
        return group, timeout
    if is_mpi4py(group):
        from . import _mpi

        return _mpi.communicator_of(group), timeout
    group = _torch_group(group, verb)
    found = _communicators.get(group)
    if found is not None:
        return found, timeout
    seconds = parse_timeout(timeout, Where(verb, "timeout", distributed().get_rank(group)))
    deadline = Deadline(_default_timeout() if seconds is None else seconds)
    with _locks_lock:
        lock = _locks.setdefault(group, threading.Lock())
    if not lock.acquire(timeout=min(deadline.left, threading.TIMEOUT_MAX)):
        raise TimeoutError(
            f"{verb} on rank {distributed().get_rank(group)}: another thread did not make the group's "
            f"communicator within {deadline.seconds:g} s"
        )
    try:
        found = _communicators.get(group)
        if found is None:
            found = Communicator(connect(group, "auto", deadline, verb))
            found._of_group = True
            _communicators[group] = found
    finally:
        lock.release()
    return found, None if seconds is None else deadline.left


def to_group_rank(group: Any, rank: Any, verb: str, name: str) -> Any:
    """A global rank as a rank of the group, as torch counts in broadcast, send and recv."""
    if isinstance(group, Communicator) or isinstance(rank, bool) or not hasattr(rank, "__index__"):
        return rank
    if is_mpi4py(group):
        return rank
    dist = distributed()

    group = _torch_group(group, verb)
    ranks = dist.get_process_group_ranks(group)
    if rank not in ranks:
        raise InvalidArgumentError(
            f"{verb}: argument '{name}' on rank {dist.get_rank(group)}: global rank {rank} is not in the "
            f"group, whose global ranks are {ranks}"
        )
    return ranks.index(rank)


def is_mpi4py(group: Any) -> bool:
    """Whether it is a communicator of mpi4py, which is not imported for that."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(group, mpi.Comm)


def _torch_group(group: Any, verb: str) -> Any:
    """The torch process group that a ``group`` argument means."""
    try:
        dist = distributed()
    except ImportError as error:
        raise InvalidArgumentError(
            f"{verb}: there is no torch here ({error}); pass group=gcomm.Communicator.from_env()"
        ) from error
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgumentError(
            f"{verb}: rank {dist.get_rank()} is not a member of the group that it was given"
        )
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise InvalidArgumentError(
            f"{verb}: group is no torch process group, mpi4py communicator or gcomm.Communicator: {group!r}"
        )
    if not dist.is_initialized():
        raise InvalidArgumentError(
            f"{verb}: torch.distributed has no default group; call init_process_group first, or pass "
            "group=gcomm.Communicator.from_env()"
        )
    return dist.group.WORLD if group is None else group


def _default_timeout() -> float:
    """What a communicator's calls have where nothing else is said: only the core reads the environment."""
    return _native.local(1)[0].timeout_s


def from_torch(group: Any, transport: str, timeout: Timeout) -> _native.Comm:
    """Connects the ranks of a group. Collective; only torch's public interface is used."""
    if transport not in _TRANSPORTS:
        raise InvalidArgumentError(f"from_torch: transport: expected one of {_TRANSPORTS}, got {transport!r}")
    if transport == "nccl":
        raise UnsupportedError("from_torch: transport='nccl' is not in this version of gcomm")
    group = _torch_group(group, "from_torch")
    seconds = parse_timeout(timeout, Where("from_torch", "timeout", distributed().get_rank(group)))
    deadline = Deadline(_default_timeout() if seconds is None else seconds)
    return connect(group, transport, deadline, "from_torch")


def connect(group: Any, transport: str, deadline: Deadline, verb: str) -> _native.Comm:
    """Connects the ranks of a group, on behalf of ``verb``."""
    kind = "torch" if transport == "torch" else "tcp"
    rank = group.rank()

    mine: dict[str, Any] = {
        "kind": kind,
        "version": _native.version(),
        "error": None,
        "host": socket.gethostname(),
    }
    listener: _native.Listener | None = None
    try:
        if kind == "tcp":
            listener = _native.Listener(_master_host(group))
            mine["address"] = listener.address
        if rank == 0:
            mine["token"] = _native.token().hex()
    except GcommError as error:
        mine["error"] = str(error)
    everybody = exchange(group, mine, deadline, verb)

    _check_agreement(everybody, rank, verb)
    token: str = everybody[0]["token"]
    if listener is None:
        from ._torch_transport import connect_gloo

        return connect_gloo(group, token, deadline, verb)
    addresses = [each["address"] for each in everybody]
    _check_reachable(everybody, addresses, verb)
    try:
        return _native.tcp(listener, rank, addresses, bytes.fromhex(token), deadline.left)
    except TimeoutError as error:
        raise TimeoutError(f"{verb} on rank {rank}, connecting the group: {error}", error.rank) from None


def _check_agreement(everybody: list[dict[str, Any]], rank: int, verb: str) -> None:
    for at, each in enumerate(everybody):
        if each["error"] is not None:
            raise GcommError(f"{verb}: rank {at} can't take part: {each['error']}", at)
    for name, what in (("version", "gcomm version"), ("kind", "transport")):
        values = [each[name] for each in everybody]
        if len(set(values)) > 1:
            text = ", ".join(f"rank {at}: {value}" for at, value in enumerate(values))
            raise MismatchError(f"{verb}: the ranks differ in {what} ({text})", rank)


def _check_reachable(everybody: list[dict[str, Any]], addresses: list[str], verb: str) -> None:
    """A loopback address is of no use to another host: say so, rather than wait for a timeout."""
    if len({each["host"] for each in everybody}) == 1:
        return
    for at, address in enumerate(addresses):
        if ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback:
            raise GcommError(
                f"{verb}: rank {at} on host {everybody[at]['host']} offers {address}, which other "
                "hosts can't reach; set GCOMM_SOCKET_IFNAME to the interface that they share",
                at,
            )


def _master_host(group: Any) -> str | None:
    """The host of the group's store, where it has one: the route to it picks the interface."""
    store = tcp_store(group_store(group))
    return store.host if store is not None else None


def tcp_store(store: Any) -> Any:
    """The TCP store behind a store, or None."""
    dist = distributed()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, dist.TCPStore) else None
