"""Arrays of any library as addresses, checked, without a copy.

torch and numpy are read directly: that is several times cheaper than their DLPack export and covers element
types that DLPack or numpy have no name for (float8, ml_dtypes' bfloat16). Everything else comes through DLPack.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from . import _native
from .errors import DtypeError, InvalidArgumentError


class Dtype(enum.IntEnum):
    """Element types, numbered as gcomm_dtype in gcomm.h."""

    float32 = 0
    bfloat16 = 1
    float16 = 2
    float64 = 3
    int8 = 4
    uint8 = 5
    int16 = 6
    uint16 = 7
    int32 = 8
    uint32 = 9
    int64 = 10
    uint64 = 11
    bool = 12
    float8_e4m3fn = 13
    float8_e5m2 = 14
    complex64 = 15
    complex128 = 16

    # Enum's own hash is a Python function, and every call looks element types up.
    __hash__ = int.__hash__


FLOATS = (Dtype.float32, Dtype.bfloat16, Dtype.float16)
_FLOAT_NAMES = "float32, bfloat16 or float16"

_ITEMSIZE = {
    dtype: size
    for size, dtypes in {
        1: (Dtype.int8, Dtype.uint8, Dtype.bool, Dtype.float8_e4m3fn, Dtype.float8_e5m2),
        2: (Dtype.bfloat16, Dtype.float16, Dtype.int16, Dtype.uint16),
        4: (Dtype.float32, Dtype.int32, Dtype.uint32),
        8: (Dtype.float64, Dtype.int64, Dtype.uint64, Dtype.complex64),
        16: (Dtype.complex128,),
    }.items()
    for dtype in dtypes
}
_BY_NAME = {dtype.name: dtype for dtype in Dtype}
_NUMPY = {np.dtype(name): dtype for name, dtype in _BY_NAME.items() if hasattr(np, name)}
_NUMPY[np.dtype(np.bool_)] = Dtype.bool
# DLPack's type codes: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 10 e4m3fn, 12 e5m2.
_DLPACK = {
    (0, 8): Dtype.int8,
    (0, 16): Dtype.int16,
    (0, 32): Dtype.int32,
    (0, 64): Dtype.int64,
    (1, 8): Dtype.uint8,
    (1, 16): Dtype.uint16,
    (1, 32): Dtype.uint32,
    (1, 64): Dtype.uint64,
    (2, 16): Dtype.float16,
    (2, 32): Dtype.float32,
    (2, 64): Dtype.float64,
    (4, 16): Dtype.bfloat16,
    (5, 64): Dtype.complex64,
    (5, 128): Dtype.complex128,
    (6, 8): Dtype.bool,
    (10, 8): Dtype.float8_e4m3fn,
    (12, 8): Dtype.float8_e5m2,
}
_torch: dict[Any, Dtype] = {}
# DLPack's device types.
_CPU = 1
_DEVICES = {2: "cuda", 3: "cuda_host", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda_managed", 14: "sycl"}


class Where:
    """Which argument of which call on which rank: the beginning of every message about an argument."""

    __slots__ = ("name", "rank", "verb")

    def __init__(self, verb: str, name: str, rank: int | None) -> None:
        self.verb = verb
        self.name = name
        self.rank = rank

    def __str__(self) -> str:
        on_rank = "" if self.rank is None else f" on rank {self.rank}"
        return f"{self.verb}: argument '{self.name}'{on_rank}"

    def invalid(self, text: str) -> NoReturn:
        raise InvalidArgumentError(f"{self}: {text}", self.rank)

    def mistyped(self, text: str) -> NoReturn:
        raise DtypeError(f"{self}: {text}", self.rank)


@dataclass(slots=True)
class Array:
    """One array argument.

    ``owner`` keeps the memory alive. ``contiguous``: in row-major order, and aligned; what isn't is
    copied before it is used.
    """

    owner: Any
    pointer: int
    shape: Sequence[int]
    count: int
    dtype: Dtype
    contiguous: bool
    writable: bool
    why_read_only: str = ""  # what to do about it, where that is not to pass a writable array

    def __post_init__(self) -> None:
        if self.pointer & 7 and self.pointer % min(_ITEMSIZE[self.dtype], 8):
            self.contiguous = False

    @property
    def nbytes(self) -> int:
        return self.count * _ITEMSIZE[self.dtype]

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE[self.dtype]

    def matrix(self) -> tuple[int, int]:
        """Rows and columns as codecs see them: the first axis and all others, or 0, 0 for a flat array."""
        if len(self.shape) < 2 or self.count == 0:
            return 0, 0
        return self.shape[0], self.count // self.shape[0]

    def overlaps(self, other: Array) -> bool:
        """Whether the two share memory."""
        first, last = self._extent()
        other_first, other_last = other._extent()
        if first >= other_last or other_first >= last:
            return False
        return (self.contiguous and other.contiguous) or _interleaved_overlap(self, other)

    def _extent(self) -> tuple[int, int]:
        if self.count == 0:
            return 0, 0
        if self.contiguous:
            return self.pointer, self.pointer + self.nbytes
        low = high = 0
        for length, stride in zip(self.shape, strides(self), strict=True):
            reach = (length - 1) * stride * self.itemsize
            low, high = low + min(reach, 0), high + max(reach, 0)
        return self.pointer + low, self.pointer + high + self.itemsize


def strides(array: Array) -> list[int]:
    """Distances between neighbours along each axis, in elements."""
    obj = array.owner
    if isinstance(obj, np.ndarray):
        return [stride // array.itemsize for stride in obj.strides]
    if isinstance(obj, _native.Array):
        return list(obj.strides)
    return list(obj.stride())


class _Layout:
    """The memory of an array for numpy, whatever its library and element type."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{array.itemsize}",
            "shape": tuple(array.shape),
            "strides": tuple(stride * array.itemsize for stride in strides(array)),
            "data": (array.pointer, True),
        }


def _interleaved_overlap(a: Array, b: Array) -> bool:
    # Columns of a matrix lie between one another, and share nothing. Exact answers can take for ever: where
    # numpy gives up, they count as overlapping.
    try:
        return np.shares_memory(np.asarray(_Layout(a)), np.asarray(_Layout(b)), max_work=1_000_000)  # type: ignore[arg-type]
    except RuntimeError:
        return True


def read(obj: Any, where: Where) -> Array:
    """Any array as an :class:`Array`; DtypeError or InvalidArgumentError where it can't be used."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Tensor):
        return _read_torch(torch, obj, where)
    if isinstance(obj, np.ndarray):
        return _read_numpy(obj, where)
    return _read_dlpack(obj, where)


def _read_torch(torch: Any, tensor: Any, where: Where) -> Array:
    if not tensor.is_cpu:
        where.invalid(f"expected a CPU tensor, got one on device '{tensor.device}'")
    if tensor.layout is not torch.strided:
        where.invalid(f"expected a dense tensor, got layout {tensor.layout}")
    if tensor.is_nested:
        where.invalid("expected one dense tensor, got a nested one; pass the tensors that it holds")
    if not _torch:
        _torch.update({getattr(torch, name): d for name, d in _BY_NAME.items() if hasattr(torch, name)})
    dtype = _torch.get(tensor.dtype)
    if dtype is None:
        where.mistyped(f"{tensor.dtype} is not an element type that gcomm moves")
    # Collectives work on values: no autograd graph sees them, as in torch.distributed.
    owner = tensor.detach() if tensor.requires_grad else tensor
    lazy = owner.is_neg() or owner.is_conj()
    count = owner.numel()
    try:
        pointer = owner.data_ptr()
    except RuntimeError:
        pointer = 0
    if pointer == 0 and count > 0:
        where.invalid(
            f"{type(tensor).__name__} has no memory of its own (a fake or wrapper tensor); pass its "
            "local tensor"
        )
    return Array(owner, pointer, owner.shape, count, dtype, owner.is_contiguous() and not lazy, True)


def _read_numpy(array: np.ndarray[Any, Any], where: Where) -> Array:
    if isinstance(array, np.ma.MaskedArray):
        where.mistyped("a masked array's mask would be lost; pass .data or .filled()")
    dtype = _NUMPY.get(array.dtype)
    if dtype is None:
        # ml_dtypes registers its types under the names that torch uses. (A name costs two microseconds.)
        dtype = _BY_NAME.get(array.dtype.name)
    if dtype is None or not array.dtype.isnative:
        where.mistyped(f"numpy dtype {array.dtype!r} is not an element type that gcomm moves")
    flags = array.flags
    return Array(
        array, _native.address(array), array.shape, array.size, dtype, flags.c_contiguous, flags.writeable
    )


def _read_dlpack(obj: Any, where: Where) -> Array:
    if (tell := getattr(obj, "__dlpack_device__", None)) is not None:
        # Before it is exported, which may wait for its device.
        try:
            kind, number = (int(part) for part in tell())
        except Exception as error:
            where.mistyped(f"{type(obj).__name__}.__dlpack_device__() does not tell a device: {error}")
        _require_cpu(kind, f":{number}", where)
    found = _native.describe(obj)
    if found is None:
        where.mistyped(
            f"expected a torch tensor, a numpy array or another array with DLPack, got {type(obj).__name__}"
        )
    _require_cpu(found.device_type, "", where)
    dtype = _DLPACK.get((found.type_code, found.bits))
    if dtype is None:
        where.mistyped(
            f"an element type of {found.bits} bits with DLPack code {found.type_code} is not one that "
            "gcomm moves"
        )
    # jax exports without the read-only flag, and its arrays must never change.
    immutable = type(obj).__module__.startswith("jax")
    writable = found.writable and not immutable
    shape, expected, contiguous = found.shape, 1, True
    for length, stride in zip(reversed(shape), reversed(found.strides), strict=True):
        contiguous = contiguous and (length == 1 or stride == expected)
        expected *= length
    array = Array(found, found.pointer, shape, found.count, dtype, contiguous or not found.count, writable)
    if immutable:
        array.why_read_only = (
            "a jax array never changes; use gcomm.jax, which returns the result, or pass a numpy or torch array"
        )
    return array


def _require_cpu(device_type: int, number: str, where: Where) -> None:
    if device_type != _CPU:
        device = _DEVICES.get(device_type, f"DLPack device type {device_type}") + number
        where.invalid(f"expected an array in CPU memory (all that this version takes), got one on {device}")


def require_float(array: Array, where: Where, what: str) -> None:
    """Refuses everything that codecs and sums do not take."""
    if array.dtype not in FLOATS:
        where.mistyped(f"{what} {_FLOAT_NAMES}, got {array.dtype.name}; convert it first")


def require_writable(array: Array, where: Where, otherwise: str = "") -> None:
    """Refuses memory that the result must not or can't safely be written to."""
    if not array.writable and array.why_read_only:
        where.invalid(f"{array.why_read_only}{otherwise}")
    if not array.writable:
        where.invalid(f"the array is read-only; pass a writable one{otherwise}")
    if not array.contiguous and _may_overlap_itself(array):
        where.invalid(
            f"elements share memory (shape {tuple(array.shape)}, strides {tuple(strides(array))}: an expanded "
            "view?), so a result can't be written to it; pass a contiguous copy"
        )


def _may_overlap_itself(array: Array) -> bool:
    # Sorted by stride, each axis must step over all that the smaller ones reach.
    reach = 0
    for stride, length in sorted(
        (abs(s), n) for s, n in zip(strides(array), array.shape, strict=True) if n > 1
    ):
        if stride <= reach:
            return True
        reach += stride * (length - 1)
    return False


def contiguous_copy(array: Array, where: Where) -> Array:
    """The same values in row-major order, in new memory."""
    if isinstance(array.owner, np.ndarray):
        return _read_numpy(np.array(array.owner, order="C", copy=True, subok=False), where)
    if isinstance(array.owner, _native.Array):
        where.invalid("expected contiguous memory (only torch and numpy arrays are copied where they are not)")
    torch = sys.modules["torch"]
    values = array.owner.resolve_conj().resolve_neg()
    return _read_torch(torch, values.clone(memory_format=torch.contiguous_format), where)


def contiguous_empty(array: Array, where: Where) -> Array:
    """New memory for as many elements, not initialised."""
    if isinstance(array.owner, np.ndarray):
        return _read_numpy(np.empty(array.owner.shape, array.owner.dtype), where)
    if isinstance(array.owner, _native.Array):
        where.invalid("expected contiguous memory (only torch and numpy arrays are copied where they are not)")
    torch = sys.modules["torch"]
    return _read_torch(torch, torch.empty_like(array.owner, memory_format=torch.contiguous_format), where)


def copy_back(array: Array, values: Array) -> Callable[[], None]:
    """What copies ``values`` into ``array`` when the call has completed."""
    target, source = array.owner, values.owner

    def copy() -> None:
        if isinstance(target, np.ndarray):
            target[...] = source
        else:
            torch = sys.modules["torch"]
            with torch.no_grad():
                target.copy_(source)

    return copy
