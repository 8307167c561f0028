"""Lists of tensors as one reduction or one broadcast, as torch's C++ backends take them."""

import functools

import torch

from unisono.errors import InvalidUsage, Unsupported
from unisono.torch._tensors import Staged, even, op_name, reduction_of

# How two tensors of one rank are combined, by the name of the reduction in the library.
_COMBINE = {
    "sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum,
    "bitand": torch.bitwise_and, "bitor": torch.bitwise_or, "bitxor": torch.bitwise_xor,
}  # fmt: skip


def all_reduce(tensors, opts, where):
    """Returns the step that reduces all tensors, the owners of its memory, and the function for its end."""
    staged = _staged(tensors, where)
    reduction = reduction_of(opts.reduceOp, tensors[0].dtype)
    combine = _COMBINE.get(reduction[0])
    if combine is None:
        raise Unsupported(
            f"{where}: a list of {len(tensors)} tensors has no {op_name(opts.reduceOp)}, since the list is one "
            "reduction; call it for each, or call allreduce_coalesced"
        )
    with torch.no_grad():
        # This works on a copy, because a failed operation must leave the tensors as they were.
        total = functools.reduce(combine, tensors[1:], tensors[0].detach().clone().contiguous())
    usable = staged.input(total)
    step = even("all_reduce", usable.dtype, [usable], [usable], reduction)
    return step, usable, lambda: _fill(tensors, usable)


def broadcast(tensors, opts, rank, where):
    """Returns the step that broadcasts one tensor to all, the owners of its memory, and the function for its end."""
    staged = _staged(tensors, where)
    if not 0 <= opts.rootTensor < len(tensors):
        raise InvalidUsage(
            f"{where}: the root's tensor has the index {opts.rootTensor}, but the list has "
            f"{len(tensors)} tensors; give one from 0 to {len(tensors) - 1}"
        )
    usable = staged.input(tensors[opts.rootTensor].detach().clone())
    sources = [usable] if rank == opts.rootRank else []
    step = even("broadcast", usable.dtype, sources, [usable], None, opts.rootRank)
    return step, usable, lambda: _fill(tensors, usable)


def _fill(tensors, result):
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(result)


def _staged(tensors, where):
    """Returns the object that stages the tensors of a list. Raises an error if they cannot be one operation."""
    if not tensors:
        raise InvalidUsage(f"{where}: there is no tensor; give one, or a list of some")
    staged = Staged(where, tensors)
    for tensor in tensors:
        if tensor.shape != tensors[0].shape:
            shapes = f"{list(tensors[0].shape)} and {list(tensor.shape)}"
            raise InvalidUsage(
                f"{where}: a list of tensors is one operation, but they have the shapes {shapes}; give all the same "
                "shape, or make a call for each"
            )
    return staged
