"""gcomm over a runtime of one's own: plain sockets between processes, a thread for each direction.

    python examples/socket_runtime.py 3

starts three ranks, which sum arrays in int8 and say what that took.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection

import numpy as np

import gcomm
from gcomm.runtimes import Op

LANES = 3


class SocketRuntime:
    """Messages by a socket for each pair and lane; a length of 8 bytes precedes each."""

    def __init__(self, rank: int, size: int, ports: Sequence[int], listener: socket.socket) -> None:
        self._sockets: dict[tuple[int, int], socket.socket] = {}
        for peer, lane in itertools.product(range(rank), range(LANES)):
            connection = socket.create_connection(("127.0.0.1", ports[peer]))
            connection.sendall(struct.pack("ii", rank, lane))
            self._sockets[peer, lane] = connection
        for _ in range((size - 1 - rank) * LANES):
            connection, _ = listener.accept()
            peer, lane = struct.unpack("ii", connection.recv(8, socket.MSG_WAITALL))
            self._sockets[peer, lane] = connection
        # A queue and a thread for each direction: messages of one lane and peer keep their order.
        self._queues: dict[tuple[bool, int, int], queue.SimpleQueue[tuple[Op, Future[None]] | None]] = {}
        for (peer, lane), connection in self._sockets.items():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for receives in (False, True):
                self._queues[receives, peer, lane] = waiting = queue.SimpleQueue()
                work = self._receive if receives else self._send
                threading.Thread(target=self._run, args=(waiting, work, connection, peer), daemon=True).start()

    def post(self, ops: Sequence[Op]) -> list[Future[None]]:
        futures: list[Future[None]] = [Future() for _ in ops]
        for op, future in zip(ops, futures, strict=True):
            self._queues[op.receives, op.peer, op.lane].put((op, future))
        return futures

    def wait(self, tickets: Sequence[Future[None]], timeout: float) -> None:
        end = time.monotonic() + timeout
        for future in tickets:
            future.result(max(end - time.monotonic(), 0))

    def abort(self) -> None:
        for connection in self._sockets.values():
            with contextlib.suppress(OSError):  # it may have ended already
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for waiting in self._queues.values():
            waiting.put(None)

    @staticmethod
    def _run(
        waiting: queue.SimpleQueue[tuple[Op, Future[None]] | None],
        work: Callable[[socket.socket, memoryview], None],
        connection: socket.socket,
        peer: int,
    ) -> None:
        while (item := waiting.get()) is not None:
            op, future = item
            try:
                work(connection, op.data)
            except OSError as error:
                future.set_exception(gcomm.errors.PeerLostError(f"rank {peer}: {error}", peer))
            else:
                future.set_result(None)

    @staticmethod
    def _send(connection: socket.socket, data: memoryview) -> None:
        connection.sendall(struct.pack("q", len(data)))
        connection.sendall(data)

    @staticmethod
    def _receive(connection: socket.socket, room: memoryview) -> None:
        (length,) = struct.unpack("q", read(connection, memoryview(bytearray(8))))
        read(connection, room[:length])


def read(connection: socket.socket, room: memoryview) -> memoryview:
    """Fill all of it."""
    got = 0
    while got < len(room):
        n = connection.recv_into(room[got:])
        if n == 0:
            raise ConnectionError("the connection ended")
        got += n
    return room


def rank_main(rank: int, size: int, pipe: Connection) -> None:
    """One rank: tell our port, learn the others', and sum."""
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    runtime = SocketRuntime(rank, size, pipe.recv(), listener)
    with gcomm.Communicator.from_runtime(runtime, rank, size, name="sockets") as comm:
        x = np.full(1_000_000, rank + 1, np.float32)
        started = time.perf_counter()
        gcomm.all_reduce(x, group=comm, codec="int8")
        taken = time.perf_counter() - started
        ratio = comm.stats["wire_bytes"] / comm.stats["raw_bytes"]
        expected = size * (size + 1) / 2
        assert abs(float(x[0]) - expected) < 0.02 * expected
        print(f"{comm}: sum {x[0]:.3f}, {ratio:.2f} of the bytes, {1e3 * taken:.0f} ms", flush=True)


def main() -> None:
    """Start the ranks and pass their ports around."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(size)]
    ranks = [context.Process(target=rank_main, args=(rank, size, pipes[rank][1])) for rank in range(size)]
    for process in ranks:
        process.start()
    ports = [mine.recv() for mine, _ in pipes]
    for mine, _ in pipes:
        mine.send(ports)
    for process in ranks:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in ranks))


if __name__ == "__main__":
    main()
