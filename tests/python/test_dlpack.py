"""Arrays of libraries that nobody here has: DLPack as a foreign producer speaks it, capsule by capsule."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import pytest

from gcomm import Communicator

CPU, CUDA, CUDA_HOST, ROCM = 1, 2, 3, 10
INT, UINT, FLOAT, BFLOAT = 0, 1, 2, 4
READ_ONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Producer:
    """A library of its own: memory, a shape, and capsules of either version of the protocol."""

    def __init__(
        self,
        values: Any,
        *,
        versioned: bool = False,
        flags: int = 0,
        device: tuple[int, int] = (CPU, 0),
        said_device: Any = None,
        kind: tuple[int, int] = (FLOAT, 32),
        strides: tuple[int, ...] | None = None,
        shape: tuple[int, ...] | None = None,
        byte_offset: int = 0,
    ) -> None:
        self.memory = np.ascontiguousarray(values)
        self.versioned = versioned
        self.said_device = device if said_device is None else said_device
        self.exports = 0
        self.released = 0
        shape = self.memory.shape if shape is None else shape
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self._record = _Versioned(1, 0, flags=flags) if versioned else _Managed()
        self._record.tensor = _Tensor(
            self.memory.ctypes.data - byte_offset,
            *device,
            len(shape),
            *kind,
            1,
            self._shape,
            self._strides,
            byte_offset,
        )
        self._delete = _Deleter(self._on_release)
        self._record.deleter = ctypes.cast(self._delete, ctypes.c_void_p)

    def _on_release(self, _: Any) -> None:
        self.released += 1

    def __dlpack_device__(self) -> Any:
        return self.said_device

    def __dlpack__(self, **how: Any) -> Any:
        if self.versioned and how.get("max_version") is None:
            raise BufferError("a consumer of version 1 or later, please")
        self.exports += 1
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        return _new_capsule(ctypes.addressof(self._record), name, None)


@pytest.fixture(scope="module")
def alone() -> Any:
    (comm,) = Communicator.local(1)
    with comm:
        yield comm


versions = pytest.mark.parametrize("versioned", [False, True], ids=["unversioned", "versioned"])


@versions
def test_in_place(alone: Communicator, versioned: bool) -> None:
    array = Producer(np.arange(6, dtype=np.float32).reshape(2, 3), versioned=versioned)
    copied = alone.stats["copied_bytes"]
    alone.all_reduce(array, codec="int8:min_bytes=0")
    assert np.allclose(array.memory, np.arange(6).reshape(2, 3), atol=0.05)
    assert alone.stats["copied_bytes"] == copied
    alone.barrier()
    assert array.released == array.exports > 0


def test_memory_stays_until_the_call_is_complete() -> None:
    first, second = Communicator.local(2)
    array = Producer(np.ones(100_000, np.float32))
    gone = weakref.ref(array)
    mine = array.memory
    work = first.all_reduce(array, codec=None, async_op=True)
    del array
    assert gone() is not None  # the call has it
    other = np.full(100_000, 2, np.float32)
    second.all_reduce(other, codec=None)
    assert work is not None
    work.wait()
    assert mine.tolist() == other.tolist() == [3.0] * 100_000
    for comm in (first, second):
        comm.close()


def test_byte_offset_and_strides_of_a_contiguous_array(alone: Communicator) -> None:
    array = Producer(np.arange(12, dtype=np.float32), shape=(3, 1, 4), strides=(4, 77, 1), byte_offset=64)
    out = np.zeros((3, 1, 4), np.float32)
    alone.all_reduce(array, out=out, codec=None)
    assert out.ravel().tolist() == list(range(12))


def test_bfloat16(alone: Communicator) -> None:
    array = Producer(np.array([0x3F80, 0x4000], np.uint16), kind=(BFLOAT, 16))
    alone.all_reduce(array, codec=None)
    assert array.memory.tolist() == [0x3F80, 0x4000]


def test_read_only_flag(alone: Communicator) -> None:
    array = Producer(np.arange(4, dtype=np.float32), versioned=True, flags=READ_ONLY)
    with pytest.raises(ValueError, match=r"argument 'tensor' on rank 0: the array is read-only.*or out="):
        alone.all_reduce(array)
    out = Producer(np.zeros(4, np.float32))
    alone.all_reduce(array, out=out, codec=None)
    assert out.memory.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("device", "name"),
    [((CUDA, 1), "cuda:1"), ((CUDA_HOST, 0), "cuda_host:0"), ((ROCM, 0), "rocm:0"), ((99, 3), "type 99:3")],
)
def test_other_devices_are_refused_before_they_are_asked_for_memory(
    alone: Communicator, device: tuple[int, int], name: str
) -> None:
    array = Producer(np.ones(4, np.float32), device=device)
    with pytest.raises(ValueError, match=f"on rank 0: expected an array in CPU memory .* got one on .*{name}"):
        alone.all_reduce(array)
    assert array.exports == 0


def test_a_device_that_only_the_capsule_tells(alone: Communicator) -> None:
    array = Producer(np.ones(4, np.float32), device=(CUDA, 0), said_device=(CPU, 0))
    with pytest.raises(ValueError, match=r"expected an array in CPU memory .* got one on cuda"):
        alone.all_reduce(array)
    assert array.released == array.exports


def test_a_producer_that_tells_no_device(alone: Communicator) -> None:
    with pytest.raises(TypeError, match=r"Producer\.__dlpack_device__\(\) does not tell a device"):
        alone.all_reduce(Producer(np.ones(4, np.float32), said_device="cpu"))


@pytest.mark.parametrize("kind", [(INT, 32), (UINT, 8), (FLOAT, 64)])
def test_element_types_that_have_no_sum(alone: Communicator, kind: tuple[int, int]) -> None:
    with pytest.raises(TypeError, match="float32, bfloat16 or float16, got"):
        alone.all_reduce(Producer(np.zeros(4), kind=kind))


def test_element_types_that_have_no_name(alone: Communicator) -> None:
    with pytest.raises(TypeError, match="an element type of 4 bits with DLPack code 17"):
        alone.broadcast(Producer(np.zeros(4), kind=(17, 4)))


def test_strided(alone: Communicator) -> None:
    with pytest.raises(ValueError, match="expected contiguous memory"):
        alone.all_reduce(Producer(np.zeros(8, np.float32), shape=(4,), strides=(2,)))


def test_export_that_fails(alone: Communicator) -> None:
    class Broken(Producer):
        def __dlpack__(self, **how: Any) -> Any:
            raise BufferError("the device is asleep")

    with pytest.raises(TypeError, match="expected a torch tensor, a numpy array or another array with DLPack"):
        alone.all_reduce(Broken(np.zeros(4, np.float32)))
