"""Finds the memory of arrays: the address, the number of bytes and the element type."""

import ctypes
import sys
from typing import Any, NamedTuple

from unisono import _native
from unisono.errors import InvalidUsage

# Element types by the format characters of `struct` and the buffer protocol, in native mode.
_KINDS = {"?": "bool", "e": "float16", "f": "float32", "d": "float64", "Zf": "complex64", "Zd": "complex128"}
_SIGNED, _UNSIGNED = "bhilqn", "cBHILQN"

# Number of bytes of an element, by type.
SIZES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}


class Memory(NamedTuple):
    """Contiguous elements in host memory."""

    address: int
    bytes: int
    dtype: str
    owner: Any

    @property
    def parts(self):
        return [(self.address, self.bytes)]


def memory_of(array, name, writable):
    """Returns the memory of an array, or raises InvalidUsage that names the argument."""
    if isinstance(array, Memory):
        return array
    try:
        found = _of_tensor(array) or _of_numpy(array, writable) or _of_buffer(array, writable)
        found = found or _of_dlpack(array, writable)
    except InvalidUsage as reason:
        raise InvalidUsage(f"{name}: {reason}") from reason
    except (BufferError, TypeError, ValueError) as reason:
        raise InvalidUsage(f"{name}: {reason}; correct the call") from reason
    if found is None:
        raise InvalidUsage(f"{name} is {type(array).__name__}, which has neither a buffer nor DLPack; pass an array")
    return found


def _of_tensor(array):
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return None
    if array.device.type != "cpu":
        raise TypeError(f"the tensor is on {array.device}, not on the host")
    if array.layout != torch.strided or array.is_nested:
        raise TypeError(f"the tensor has layout {array.layout}, not one block of elements; pass tensor.to_dense()")
    if not array.is_contiguous():
        raise TypeError("the tensor is not contiguous; pass tensor.contiguous()")
    if array.is_conj() or array.is_neg():
        raise TypeError("the memory of the tensor has other values than the tensor; pass resolve_conj().resolve_neg()")
    dtype = str(array.dtype).removeprefix("torch.")
    return Memory(tensor_address(array), array.nbytes, dtype, array)


def tensor_address(tensor):
    """Returns the address of a tensor's elements, or 0 if their storage has been freed.

    After that, the address of a view is only its offset.
    """
    address, offset = tensor.data_ptr(), tensor.storage_offset()
    return 0 if offset and address == offset * tensor.element_size() else address


def _of_numpy(array, writable):
    numpy = sys.modules.get("numpy")
    # A NumPy scalar also has the array interface, but its memory is temporary.
    if numpy is None or not isinstance(array, numpy.ndarray):
        return None
    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError("the array is masked, and its mask would be lost; pass array.filled(value) or array.data")
    dtype, (address, read_only) = array.dtype, array.__array_interface__["data"]
    if not array.flags.c_contiguous:
        raise TypeError("the array is not contiguous; pass numpy.ascontiguousarray(array)")
    if read_only and writable:
        raise TypeError("the array is read-only, but receives a result")
    # Arrays of kind `T` hold strings of any length, which are references although `hasobject` is
    # false.
    if dtype.hasobject or dtype.kind == "T":
        raise TypeError(
            f"elements of type {dtype} are references, which mean nothing to another process, and received bytes "
            "would become ones; pass an array of numbers, or pickle the objects into a buffer of uint8"
        )
    if not dtype.isnative:
        raise TypeError(f"elements of type {dtype.str} are in the other byte order")
    return Memory(address, array.nbytes, dtype.name, array)


def _of_buffer(array, writable):
    try:
        view = memoryview(array)
    except TypeError:
        return None
    if not view.c_contiguous:
        raise TypeError("the buffer is not contiguous")
    if view.readonly and writable:
        raise TypeError("the buffer is read-only, but receives a result")
    dtype = _dtype_of_format(view.format, view.itemsize)
    if view.nbytes == 0:
        return Memory(0, 0, dtype, array)
    # ctypes gives the address of writable buffers only, so a read-only buffer is copied.
    flat = memoryview(bytearray(view)) if view.readonly else view.cast("B")
    holder = (ctypes.c_char * view.nbytes).from_buffer(flat)
    return Memory(ctypes.addressof(holder), view.nbytes, dtype, (holder, flat, array))


def _dtype_of_format(code, size):
    letter = code.lstrip("@=<" if sys.byteorder == "little" else "@=>")
    if letter in _KINDS:
        return _KINDS[letter]
    if len(letter) == 1 and letter in _SIGNED:
        return f"int{8 * size}"
    if len(letter) == 1 and letter in _UNSIGNED:
        return f"uint{8 * size}"
    raise TypeError(f"elements of format `{code}` are no numbers")


def _of_dlpack(array, writable):
    if not hasattr(array, "__dlpack__"):
        return None
    if writable:
        raise TypeError(
            f"{type(array).__name__} is reached by DLPack alone, whose memory may be shared; "
            "pass a NumPy array for results"
        )
    capsule = array.__dlpack__()
    address, size, dtype = _native.dlpack_memory(capsule)
    return Memory(address, size, dtype, (capsule, array))
