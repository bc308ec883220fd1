"""Where a tensor's elements are."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

# Types by the format characters of Python's buffer protocol.
_FORMATS = {"f": "f32", "d": "f64", "e": "f16", "i": "i32", "l": "i64", "q": "i64"}
_TORCH = {
    "torch.float32": "f32",
    "torch.float64": "f64",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.int32": "i32",
    "torch.int64": "i64",
}


class Memory(NamedTuple):
    """Elements in memory: address, number, type, and the object that keeps them there."""

    address: int
    length: int
    dtype: str
    owner: Any


def of(tensor: Any) -> Memory:
    """The elements of a contiguous torch CPU tensor, or of a writable buffer such as a NumPy array.

    Raises TypeError for other element types, and ValueError for memory that cannot be used in
    place.
    """
    if hasattr(tensor, "data_ptr"):
        return _of_torch(tensor)
    view = memoryview(tensor)
    if view.readonly or not view.c_contiguous:
        raise ValueError(
            "the buffer is read-only or not contiguous; give a writable, C-contiguous one"
        )
    if view.format not in _FORMATS:
        raise TypeError(
            f"elements of format {view.format!r}; float16, float32, float64, int32 and int64 are "
            "allowed"
        )
    owner = (ctypes.c_char * view.nbytes).from_buffer(view.cast("B")) if view.nbytes else None
    address = ctypes.addressof(owner) if owner is not None else 0
    return Memory(address, view.nbytes // view.itemsize, _FORMATS[view.format], owner)


def _of_torch(tensor: Any) -> Memory:
    if not tensor.is_cpu:
        raise ValueError(f"the tensor is on {tensor.device}; move it to the CPU")
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous; call .contiguous() on it")
    if tensor.is_neg():
        raise ValueError(
            "the tensor is a view that negates elements when they are read; call .resolve_neg() on "
            "it"
        )
    return Memory(tensor.data_ptr(), tensor.numel(), _name_of(tensor.dtype), tensor)


# A lookup takes less time than the type's name.
@functools.cache
def _name_of(dtype: Any) -> str:
    name = _TORCH.get(str(dtype))
    if name is None:
        raise TypeError(
            f"elements of {dtype}; float16, bfloat16, float32, float64, int32 and int64 are allowed"
        )
    return name
