"""gcomm's C library as Python objects. Private: use the gcomm package."""

from collections.abc import Callable, Sequence

def version() -> str: ...
def codec_rows() -> list[tuple[str, bool, str, float, int]]: ...
def transport_rows() -> list[tuple[str, bool, str, float, int]]: ...
def isa_rows() -> list[tuple[str, bool, str, float, int]]: ...

class Array:
    """An array seen through DLPack. It keeps the memory alive."""

    @property
    def pointer(self) -> int: ...
    @property
    def count(self) -> int:
        """Elements."""

    @property
    def itemsize(self) -> int:
        """Bytes an element."""

    @property
    def shape(self) -> list[int]: ...
    @property
    def strides(self) -> list[int]:
        """In elements."""

    @property
    def type_code(self) -> int:
        """DLPack's type code."""

    @property
    def bits(self) -> int:
        """Bits an element."""

    @property
    def device_type(self) -> int:
        """DLPack's; 1 is the CPU."""

    @property
    def writable(self) -> bool: ...

def address(array: object) -> int: ...
def describe(array: object | None) -> Array | None: ...

class Codec:
    def __init__(self, spec: str, isa: str | None = None) -> None: ...
    @property
    def spec(self) -> str: ...
    @property
    def isa(self) -> str: ...
    def max_encoded_bytes(self, count: int) -> int: ...
    def encode(
        self, pointer: int, dtype: int, count: int, key: str | None, position: tuple[int, int, int] | None
    ) -> bytes: ...
    def encode_into(
        self, pointer: int, dtype: int, count: int, key: str | None, target: int, capacity: int
    ) -> int: ...
    def decode(self, source: int, nbytes: int, pointer: int, dtype: int, count: int) -> None: ...
    def decode_accumulate(self, source: int, nbytes: int, accumulator: int, count: int) -> None: ...
    def report(self) -> str: ...
    def save_state(self) -> bytes: ...
    def load_state(self, state: bytes) -> None: ...

class Basis:
    def __init__(self, rows: int, cols: int, rank: int, isa: str | None = None) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def digest(self) -> int: ...
    @property
    def squared_norm(self) -> float: ...
    @property
    def spectrum(self) -> list[float]: ...
    def update(self, reference: int, dtype: int, rounds: int) -> None: ...
    def apply(self, matrix: int) -> None: ...
    def inverse(self, matrix: int) -> None: ...
    def read(self, u: int, v: int) -> None: ...

class Gnmr:
    def __init__(
        self, tau: float, tau_delta: float, window: int, warmup: int, max_ops: int, lock: int, levels: int
    ) -> None: ...
    @property
    def step(self) -> int: ...
    def set_step(self, step: int) -> None: ...
    def add(self, name: str) -> int: ...
    def remove(self, unit: int) -> None: ...
    def find(self, name: str) -> int: ...
    def level(self, unit: int) -> int: ...
    def observe(
        self, units: int, norms: int, count: int, step: int
    ) -> tuple[
        list[tuple[int, int, int, int, float, int, float, float]],
        list[tuple[int, int, int, int, float, int, float, float]],
    ]:
        """Unit, kind, level, reason, scale, until, rho and delta of each action; and of each refused."""

    def get(self, unit: int) -> tuple[float, float, float, int, int, int, int, int, int, list[float]]:
        """Mean, rho, delta, count, until, seen, level, reason, next and the last values of rho."""

    def set(
        self, unit: int, values: tuple[float, float, float, int, int, int, int, int, int, list[float]]
    ) -> None: ...

def norm(data: int, dtype: int, count: int) -> float: ...
def scale(data: int, dtype: int, count: int, scale: float) -> None: ...

class Rvq:
    def __init__(
        self, dim: int, subvector: int, stages: int, codewords: int, seed: int, isa: str | None = None
    ) -> None: ...
    def encoded_bytes(self, tokens: int) -> int: ...
    def update(self, z: int, dtype: int, tokens: int) -> None: ...
    def encode(self, z: int, dtype: int, tokens: int, dst: int, capacity: int) -> int: ...
    def decode(self, src: int, bytes: int, dst: int, dtype: int, tokens: int) -> None: ...
    def read(self, codebooks: int) -> None: ...
    def load(self, codebooks: int) -> None: ...

class Listener:
    """An open TCP port, waiting for peers."""

    def __init__(self, master_host: str | None) -> None: ...
    @property
    def address(self) -> str: ...

class Comm:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def transport(self) -> str: ...
    def medium(self, peer: int) -> str: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def here(self) -> bool:
        """False in a forked child."""

    def close(self) -> None: ...
    def abort(self, why: str) -> None: ...
    def stats(self) -> dict[str, int | float]: ...
    def codec(self, spec: str) -> Codec:
        """The codec of this text that lives in the communicator."""

def local(n: int) -> list[Comm]: ...
def token() -> bytes: ...
def tcp(listener: Listener, rank: int, addresses: Sequence[str], token: bytes, limit_s: float) -> Comm:
    """Every wait for the connections to stand ends after limit_s."""

def close_all(comms: list[Comm], grace_s: float, why: str) -> None: ...
def mpi(comm: bytes) -> Comm:
    """The bytes of an MPI_Comm."""

def env() -> Comm: ...
def all_reduce(
    comm: Comm,
    tensors: Sequence[tuple[int, int, int, str | None, int, int]],
    dtype: int,
    op: int,
    codec: Codec | None,
    timeout_s: float,
    keep: object,
) -> Work: ...
def reduce_scatter(
    comm: Comm,
    input: int,
    output: int,
    count: int,
    dtype: int,
    op: int,
    codec: Codec | None,
    key: str | None,
    rows: int,
    cols: int,
    timeout_s: float,
    keep: object,
) -> Work: ...
def all_gather(
    comm: Comm,
    input: int,
    output: int,
    count: int,
    dtype: int,
    codec: Codec | None,
    key: str | None,
    timeout_s: float,
    keep: object,
) -> Work: ...
def all_to_all(
    comm: Comm,
    input: int,
    send_counts: Sequence[int],
    output: int,
    recv_counts: Sequence[int],
    dtype: int,
    codec: Codec | None,
    key: str | None,
    timeout_s: float,
    keep: object,
) -> Work: ...
def broadcast(
    comm: Comm,
    data: int,
    count: int,
    dtype: int,
    root: int,
    codec: Codec | None,
    key: str | None,
    timeout_s: float,
    keep: object,
) -> Work: ...
def send(
    comm: Comm,
    data: int,
    count: int,
    dtype: int,
    peer: int,
    codec: Codec | None,
    key: str | None,
    timeout_s: float,
    keep: object,
) -> Work: ...
def recv(
    comm: Comm,
    data: int,
    count: int,
    dtype: int,
    peer: int,
    codec: Codec | None,
    key: str | None,
    timeout_s: float,
    keep: object,
) -> Work: ...
def barrier(comm: Comm, timeout_s: float, keep: object) -> Work: ...

class Work:
    def wait(self, timeout_s: float | None) -> bool: ...
    def is_completed(self) -> bool: ...
    def stats(self) -> dict[str, int | float | str | bool]: ...
    def tensor_stats(self, tensors: int) -> list[tuple[int, int, bool]]: ...
    def on_complete(self, fn: Callable[[], object]) -> None:
        """Has fn() called by a thread that runs next_completion(), once the work is complete."""

def next_completion() -> Callable[[], object] | None: ...
def waiting_threads() -> int: ...
def release_finished() -> None: ...
def stop_completions() -> None: ...
def after_fork_in_child() -> None: ...
def interpreter_ends() -> None: ...
def callbacks(transport: object, name: str, rank: int, size: int, overhead_bytes: int) -> Comm: ...

PING_PONG: int = 0

ONE_WAY: int = 1

BIDIRECTIONAL: int = 2

def link_probe(
    comm: Comm, peer: int, initiator: bool, pattern: int, bytes: int, iterations: int
) -> list[float]:
    """Seconds of each exchange (the other side: zeros)."""

def xla_comm(comm: Comm) -> int:
    """The number by which compiled programs name a communicator."""

def xla_codec(codec: Codec) -> int:
    """The same of a codec with a state of its own."""

def xla_handlers() -> dict[str, object]:
    """Capsules for jax.ffi.register_ffi_target."""
