"""Converts tensors to memory for operations, and reductions to names."""

import torch
from torch._C._distributed_c10d import ReduceOp

from unisono import _native
from unisono._memory import tensor_address
from unisono.errors import InvalidUsage, Unsupported

# Element types that can be reduced, by torch's type.
REDUCIBLE = {
    torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64",
    torch.uint8: "uint8", torch.uint16: "uint16", torch.uint32: "uint32", torch.uint64: "uint64",
    torch.bool: "bool", torch.complex64: "complex64", torch.complex128: "complex128",
    torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2",
}  # fmt: skip
_NAMES = {
    "SUM": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "AVG": "avg", "PREMUL_SUM": "pre_mul_sum",
    "BAND": "bitand", "BOR": "bitor", "BXOR": "bitxor",
}  # fmt: skip
# As in NCCL, a sum of bools is true if one of them is true.
_OF_TRUTH = {"sum": "bitor", "prod": "bitand"}
# Names of reductions that need no other parameter, by torch's value.
_PLAIN = {getattr(ReduceOp, name): (_NAMES[name], None) for name in _NAMES if name != "PREMUL_SUM"}

# A size that no storage reaches, so a higher address cannot be an offset.
_OFFSETS_END = 1 << 40


def parts(tensors):
    """Returns the addresses and bytes of tensors."""
    # Few addresses are as low as an offset can be, so most calls skip the exact check.
    return [
        (address if (address := tensor.data_ptr()) >= _OFFSETS_END else tensor_address(tensor), tensor.nbytes)
        for tensor in tensors
    ]


def is_usable(tensor, dtype):
    """Returns true if operations can use the memory of a tensor directly, as elements of `dtype`."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.dtype is dtype
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def overlap(tensors):
    """Returns true if two tensors of a list share memory. The library does not accept such a list of buffers."""
    if len(tensors) < 2:
        return False
    ends = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in tensors if tensor.nbytes)
    return any(address + length > later for (address, length), (later, _) in zip(ends, ends[1:]))


def direct(collective, sources, targets, op=None, root=0, lists=False):
    """Returns a step of equal shares if their memory can be used directly, or else None.

    Most calls take this path, and most of their time is spent in Python.
    """
    dtype = (sources or targets)[0].dtype
    reduction = None
    if op is not None:
        reduction = _PLAIN.get(getattr(op, "op", op))
        if reduction is None or dtype is torch.bool or dtype not in REDUCIBLE:
            return None
    for tensor in sources:
        if not is_usable(tensor, dtype):
            return None
    if targets is not sources:
        for tensor in targets:
            if not is_usable(tensor, dtype):
                return None
    if lists and overlap(targets):
        return None
    return _native.Operation.even(
        collective, carrier(dtype), parts(sources), parts(targets), reduction, root, lists
    )


def op_name(op):
    """Returns the name of a reduction, as torch spells it."""
    kind = getattr(op, "op", op)
    return getattr(kind, "name", None) or str(kind).rsplit(".", 1)[-1]


def reduction_of(op, dtype):
    """Returns the (name, factor) of a reduction of elements of a type."""
    name = op_name(op)
    if name not in _NAMES:
        raise Unsupported(f"unisono has no reduction {name}; choose one of {', '.join(_NAMES)}")
    if name != "PREMUL_SUM":
        own = _NAMES[name]
        return (_OF_TRUTH.get(own, own) if dtype == torch.bool else own), None
    factor = op.factor() if callable(getattr(op, "factor", None)) else _factor_of_state(op)
    return "pre_mul_sum", factor.item() if isinstance(factor, torch.Tensor) else factor


def _factor_of_state(op):
    factor = op.__getstate__()[1] if hasattr(op, "__getstate__") else None
    if factor is None:
        raise Unsupported("this version of torch does not tell the factor of PREMUL_SUM; multiply first, then sum")
    return factor


def carrier(dtype):
    """Returns the name of the type by which the library moves such elements."""
    return REDUCIBLE.get(dtype, "uint8")


def reducible(dtype, where):
    """Returns the name of a type. Raises an error with the rank and call in `where` if it cannot be reduced."""
    name = REDUCIBLE.get(dtype)
    if name is None:
        raise Unsupported(f"{where}: elements of {dtype} cannot be reduced; convert them first")
    return name


def even(collective, dtype, inputs, outputs, reduction=None, root=0, lists=False):
    """Returns a step of equal shares, whose input and output are lists of tensors."""
    return _native.Operation.even(collective, carrier(dtype), parts(inputs), parts(outputs), reduction, root, lists)


def check_tensors(tensors, where):
    """Raises an error unless every tensor is dense, on the CPU, and of the same type."""
    for tensor in tensors:
        if tensor.layout != torch.strided:
            raise Unsupported(f"{where}: a tensor has the layout {tensor.layout}; call to_dense() first")
        if tensor.device.type != "cpu":
            raise InvalidUsage(f"{where}: a tensor is on {tensor.device}, but unisono has the CPU; use nccl for GPUs")
        if tensor.dtype != tensors[0].dtype:
            types = f"{tensors[0].dtype} and {tensor.dtype}"
            raise InvalidUsage(f"{where}: tensors of one call have the types {types}; give all the same type")


class Staged:
    """Contiguous tensors that an operation uses instead of tensors that are not contiguous.

    Args:
        where: The rank and the call, for errors.
        tensors: All tensors of the call, which are checked.
    """

    def __init__(self, where, tensors):
        check_tensors(tensors, where)
        self._where, self._copies = where, []

    def input(self, tensor):
        """Returns a contiguous tensor with the same elements."""
        if is_usable(tensor, tensor.dtype):
            return tensor
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    def output(self, tensor):
        """Returns a contiguous tensor. If it is a copy, ``finish`` copies it back."""
        usable = self.input(tensor)
        if usable is not tensor and torch._debug_has_internal_overlap(tensor) == 1:
            raise InvalidUsage(
                f"{self._where}: elements of a tensor that receives results share memory: its shape is "
                f"{list(tensor.shape)} with the strides {list(tensor.stride())}; pass tensor.contiguous(); nothing was "
                "sent"
            )
        if usable.data_ptr() != tensor.data_ptr():
            self._copies.append((tensor.detach(), usable))
        return usable

    def outputs(self, tensors):
        """Returns contiguous tensors that share no memory. If tensors overlap, they are copied back in order."""
        if not overlap(tensors):
            return [self.output(tensor) for tensor in tensors]
        copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
        self._copies += zip((tensor.detach() for tensor in tensors), copies)
        return copies

    @property
    def finish(self):
        """The function to call after the operation, or None."""
        return self._copy_back if self._copies else None

    def _copy_back(self):
        for tensor, usable in self._copies:
            tensor.copy_(usable)
