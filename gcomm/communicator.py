"""Communicators: a set of ranks and the connections between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from . import _lifecycle, _native, runtimes
from ._arguments import parse_int, parse_rank, plain_text
from ._arrays import Where
from ._call import Timeout
from ._codec import check_state, state_bytes
from ._collectives import Collectives
from .errors import CodecError, GcommError, UnsupportedError
from .runtimes import Runtime

__all__ = ["Communicator"]

_STATE_VERSION = 1
_LINK_PATTERNS = {
    "ping_pong": _native.PING_PONG,
    "one_way": _native.ONE_WAY,
    "bidirectional": _native.BIDIRECTIONAL,
}


class Communicator(Collectives):
    """Ranks that make the same calls in the same order.

    Made by :meth:`from_torch`, :meth:`from_mpi`, :meth:`from_env`, :meth:`from_runtime` or :meth:`local`; a
    context manager that closes at its end. The verbs of the package are its methods, with ranks counted within
    the communicator. All of them may be called from several threads; calls are carried out in the order in
    which they were made.

    Every array is checked before anything is sent. Contiguous memory is used in place. Where a torch or numpy
    array is not contiguous, a copy travels and the result is copied back; ``stats["copied_bytes"]`` counts
    that. Results can't be written to arrays that are read-only or whose elements share memory (expanded views).
    """

    def __init__(self, native: _native.Comm) -> None:
        super().__init__(native)
        self._transport = native.transport
        _lifecycle.register(native)

    # ---- making ---------------------------------------------------------------------------------------------

    @classmethod
    def from_torch(
        cls,
        group: Any = None,
        transport: str = "auto",
        two_level: bool = False,
        node_of: Sequence[int] | Callable[[int], int] | None = None,
        *,
        timeout: Timeout = None,
    ) -> Communicator:
        """A communicator of the ranks of a torch process group; a collective call.

        Parameters
        ----------
        group : torch.distributed.ProcessGroup, optional
            The default group if not given. The group is used to exchange addresses, and is not needed
            afterwards.
        transport : {"auto", "tcp", "torch", "nccl"}
            "tcp": sockets of gcomm's own (what "auto" takes on CPUs). "torch": torch's own send and receive,
            over a private gloo group, for networks that only torch reaches.
        two_level, node_of
            Not in this version.
        timeout : float or timedelta, optional
            Seconds until all ranks must have made this call; the communicator's default (5 minutes) if not
            given.

        Raises
        ------
        gcomm.errors.TimeoutError
            Some rank did not come in time.
        gcomm.errors.AbortedError
            Some rank gave up; all must try again.
        gcomm.errors.MismatchError
            Ranks asked for different transports.
        gcomm.errors.UnsupportedError
            The transport is not in this version.
        """
        from . import _torch_group

        if two_level or node_of is not None:
            raise UnsupportedError("from_torch: two_level and node_of are not in this version of gcomm")
        return cls(_torch_group.from_torch(group, transport, timeout))

    @classmethod
    def from_env(cls) -> Communicator:
        """A communicator from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, over TCP. Needs no torch."""
        return cls(_native.env())

    @classmethod
    def from_mpi(cls, comm: Any, transport: str = "auto") -> Communicator:
        """A communicator of the ranks of an mpi4py communicator; a collective call.

        gcomm works on duplicates of it and makes progress in threads of its own. Close it before MPI is
        finalised (at the end of a Python program that happens by itself).

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
            Any communicator within one group of processes.
        transport : {"auto", "mpi", "mpi4py"}
            "mpi": the native transport, on MPICH and all that keeps to its binary interface, or an MPI with
            that of MPI 5. "mpi4py": mpi4py's own send and receive, under Python's lock, on any MPI; slower.
            "auto" takes the first where it can; ``Communicator.transport`` says which it was.

        Raises
        ------
        gcomm.errors.UnsupportedError
            MPI was not initialised with ``MPI.THREAD_MULTIPLE``, or the native transport was asked for and
            can't work with this MPI.
        gcomm.errors.InvalidArgumentError
            MPI.COMM_NULL, an intercommunicator, or MPI was finalised.
        TypeError
            It is no mpi4py communicator.
        """
        from . import _mpi

        return cls(_mpi.connect(comm, transport))

    @classmethod
    def from_runtime(
        cls, runtime: Runtime, rank: int, size: int, *, name: str = "callback", overhead_bytes: int = 0
    ) -> Communicator:
        """A communicator over a runtime's own messages.

        Parameters
        ----------
        runtime : gcomm.runtimes.Runtime
            Sends and receives bytes between the ranks. Every rank gives its own.
        rank, size : int
            Which rank this is, of how many.
        name : str
            What ``Communicator.transport`` says.
        overhead_bytes : int
            What the runtime adds to each message on the wire, for statistics.
        """
        where = Where("from_runtime", "size", None)
        size = parse_int(size, where, 1, 2**31 - 1)
        rank = parse_int(rank, Where("from_runtime", "rank", None), 0, size - 1)
        return cls(runtimes.connect(runtime, rank, size, name, overhead_bytes))

    @classmethod
    def from_nccl(cls, unique_id: bytes, rank: int, size: int) -> Communicator:
        """Not in this version."""
        raise UnsupportedError("from_nccl: NCCL is not in this version of gcomm")

    @classmethod
    def local(cls, n: int) -> list[Communicator]:
        """Communicators of n ranks that are threads of this process: rank i uses the i-th."""
        return [cls(native) for native in _native.local(parse_int(n, Where("local", "n", None), 1, 2**31 - 1))]

    # ---- asking and ending ----------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Number of this process among the communicator's ranks."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def transport(self) -> str:
        """The name of what carries the bytes: "tcp", "local", "torch", "mpi" or "mpi4py"."""
        return self._transport

    def medium(self, peer: int) -> str:
        """What carries the bytes to and from ``peer``.

        "shm" where two ranks of the tcp transport share memory: those of one host and network namespace, unless
        GCOMM_TCP_SHM=0 is set for one of them. Else the transport's name.
        """
        return self._native.medium(parse_rank(peer, self._size, Where("medium", "peer", self._rank)))

    @property
    def stats(self) -> Mapping[str, int | float]:
        """Sums over all calls so far.

        calls, raw_path_calls, raw_bytes (what the same calls send uncompressed), wire_bytes (sent by this rank,
        everything counted), encode_s, comm_s, decode_s, plans and workspace_bytes (in the cache now, memory
        shared with peers included), copied_bytes (of arrays that were not contiguous), shared_memory_peers (how
        many peers are reached through shared memory; see :meth:`medium`).
        """
        shared = sum(self._native.medium(peer) == "shm" for peer in range(self._size))
        return {**self._native.stats(), "copied_bytes": self._copied_bytes, "shared_memory_peers": shared}

    def link_probe(self, peer: int, initiator: bool, pattern: str, nbytes: int, iterations: int) -> list[float]:
        """Times exchanges with one peer over the bare transport: no codec, no header.

        The peer makes the same call at the same time, with ``initiator`` the other way round; nothing else is
        under way between the two.

        Parameters
        ----------
        peer : int
            Rank of the other end.
        pattern : {"ping_pong", "one_way", "bidirectional"}
            ``nbytes`` there and back; there, and one byte back; or both ways at once.
        nbytes, iterations : int
            Bytes of a message, and how many exchanges.

        Returns
        -------
        list of float
            Seconds of each exchange; zeros where ``initiator`` is False.
        """
        if not isinstance(pattern, str) or pattern not in _LINK_PATTERNS:
            Where("link_probe", "pattern", self._rank).invalid(
                f"expected one of {', '.join(_LINK_PATTERNS)}, got {pattern!r}"
            )
        return _native.link_probe(
            self._native,
            parse_rank(peer, self._size, Where("link_probe", "peer", self._rank)),
            bool(initiator),
            _LINK_PATTERNS[pattern],
            parse_int(nbytes, Where("link_probe", "nbytes", self._rank), 1, 2**63 - 1),
            parse_int(iterations, Where("link_probe", "iterations", self._rank), 0, 2**32 - 1),
        )

    def __repr__(self) -> str:
        return f"<gcomm.Communicator rank {self._rank} of {self._size} over {self._transport}>"

    def close(self) -> None:
        """Completes what is queued, says goodbye to the peers and ends the threads. Can be called again.

        In a forked child it does nothing: what the child inherited is its parent's.
        """
        if self._native.here:
            self._native.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.close()
        elif self._native.here:
            # Peers wait for calls that will not come: tell them, rather than wait for them in turn. Whatever
            # goes wrong with that, the program's own exception is the one to be seen.
            with contextlib.suppress(GcommError):
                self.abort(f"rank {self._rank} left with {kind.__name__}: {_words_of(error)}")
                self.close()

    def state_dict(self) -> dict[str, Any]:
        """State of this rank: that of the codecs that were given as text.

        Plain objects: {"version", "rank", "size", "codecs": {text: bytes}}. Residuals differ between ranks:
        every rank saves and loads its own. The texts are canonical: options in one order, defaults left out.
        """
        with self._lock:
            codecs = {codec.spec: codec for codec in self._codecs.values()}
        return {
            "version": _STATE_VERSION,
            "rank": self._rank,
            "size": self._size,
            "codecs": {spec: codec.save_state() for spec, codec in codecs.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state_dict`` returned on this rank of a communicator of the same size.

        Codecs that the state does not name forget what they have: all is as it was when the state was saved. If
        anything is wrong with the state, nothing is changed.

        Raises
        ------
        gcomm.errors.CodecError
            The state is another rank's, of another size or version, or damaged.
        gcomm.errors.InvalidArgumentError
            A call that uses such a codec has not completed.
        """
        what = "communicator state"
        expected = {"version": _STATE_VERSION, "rank": self._rank, "size": self._size}
        check_state(state, what, expected, self._rank)
        saved = state.get("codecs")
        if not isinstance(saved, Mapping):
            raise CodecError(f"{what}: 'codecs': expected a dict, got {type(saved).__name__}", self._rank)
        wanted: dict[str, tuple[_native.Codec, bytes]] = {}  # by canonical text
        for spec, each in saved.items():
            if not isinstance(spec, str):
                raise CodecError(f"{what}: 'codecs': expected texts, got {spec!r}", self._rank)
            # Not among those in use until all is well.
            codec = self._native_codec(spec, Where("load_state_dict", "state", self._rank))
            wanted[codec.spec] = codec, state_bytes(each, f"{what}: codec {spec!r}", self._rank)
        with self._lock:
            for codec in self._codecs.values():
                if codec.spec not in wanted:
                    wanted[codec.spec] = codec, _native.Codec(codec.spec).save_state()
        before = [(codec, codec.save_state()) for codec, _ in wanted.values()]
        try:
            for codec, each in wanted.values():
                codec.load_state(each)
        except CodecError as error:
            for codec, each in before:
                codec.load_state(each)
            raise CodecError(f"{what}: {error}", self._rank) from None
        for codec, _ in wanted.values():
            self._codecs.setdefault(codec.spec, codec)


def _words_of(error: BaseException | None) -> str:
    try:
        return plain_text(str(error))
    except Exception:
        return "(its text could not be had)"
