"""all_reduce of sparse tensors. Every rank gathers all entries and adds those with equal indices."""

import math

import torch

from unisono import _native
from unisono.errors import InvalidUsage, Unsupported
from unisono.torch._profile import entry
from unisono.torch._tensors import REDUCIBLE, carrier, even, op_name, parts, reducible
from unisono.torch._work import UnisonoWork


def all_reduce(backend, tensors, opts):
    """Adds sparse tensors of all ranks. The operation is complete when the call returns."""
    where = backend._where("sparse all_reduce")
    if op_name(opts.reduceOp) != "SUM":
        raise Unsupported(f"{where}: sparse tensors can only be summed; call to_dense() first")
    if any(not tensor.is_sparse or tensor.shape != tensors[0].shape for tensor in tensors):
        raise InvalidUsage(f"{where}: the tensors of a call differ in layout or shape; give all the same ones")
    for tensor in tensors:
        reducible(tensor.dtype, where)
    error = None
    with entry("sparse_all_reduce", tensors):
        try:
            for tensor in tensors:
                _all_reduce_one(backend, tensor)
        except RuntimeError as failure:
            error = failure
    return UnisonoWork(None, tensors, error=error)


def _all_reduce_one(backend, tensor):
    comm, size = backend._comm, backend.size()
    own = tensor.detach().coalesce()
    indices, values = own.indices().t().contiguous(), own.values().contiguous()
    head = _head(values.shape[0], own.sparse_dim(), tensor.dtype, tensor.shape)
    heads = torch.zeros((size, len(head)), dtype=torch.int64)
    comm.run([even("all_gather", torch.int64, [head], [heads])])
    # From here on, all ranks have the same counts and indices, so they also raise the same error.
    counts, shape = heads[:, 0], tensor.shape[: own.sparse_dim()]
    _check_heads(backend.rank(), heads.tolist())
    all_indices = _gather(comm, backend.rank(), indices, counts)
    _check_indices(backend.rank(), all_indices, counts, shape)
    all_values = _gather(comm, backend.rank(), values, counts)
    total = torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape).coalesce()
    with torch.no_grad():
        tensor.copy_(total)


def _head(count, sparse_dimensions, dtype, shape):
    """Returns the description of a rank's tensor. Its length is the same for tensors of up to 12 dimensions."""
    room = [0] * (_DIMENSIONS - len(shape))
    return torch.tensor([count, sparse_dimensions, _TYPES.index(dtype), len(shape), *shape, *room], dtype=torch.int64)


def _check_heads(own, heads):
    """Refuses other shapes and types, and more entries than a tensor of this shape has."""
    _, dimensions, _, length, *shape = heads[0]
    cells = math.prod(shape[:length][:dimensions])
    for rank, (count, *others) in enumerate(heads):
        if others != heads[0][1:] or not 0 <= count <= cells:
            raise InvalidUsage(
                f"rank {own} in sparse all_reduce: rank {rank} sent {_text_of(others)} and {count} entries, where "
                f"rank 0 has {_text_of(heads[0][1:])} and at most {cells} entries; give all ranks tensors of the same "
                "shape and type"
            )


def _text_of(head):
    dimensions, kind, length, *shape = head
    dtype = _TYPES[kind] if 0 <= kind < len(_TYPES) else "an unknown type"
    return f"a tensor of the shape {shape[: max(0, length)]} of {dtype} with {dimensions} sparse dimensions"


def _check_indices(own, indices, counts, shape):
    """Refuses indices outside of the tensor, because torch would write to memory at these indices."""
    sizes = torch.tensor(shape, dtype=torch.int64)
    outside = ((indices < 0) | (indices >= sizes)).any(dim=1)
    if not outside.any():
        return
    row = int(outside.nonzero()[0])
    rank = int((counts.cumsum(0) <= row).sum())
    raise InvalidUsage(
        f"rank {own} in sparse all_reduce: rank {rank} sent the index {indices[row].tolist()}, which lies outside of "
        f"the sparse shape {list(shape)}; give all ranks tensors of the same shape with indices inside"
    )


def _gather(comm, rank, rows, counts):
    """Returns the rows of all ranks, of which rank i has ``counts[i]``.

    The rows arrive in turns, each of which is twice as long as the one before. So memory grows only with the rows that
    arrive, even if a rank announces more than it sends. All ranks have the same counts, and so the same turns.
    """
    row = rows.element_size() * math.prod(rows.shape[1:])
    counts = counts.tolist()
    begin, length, turns = 0, max(1, FIRST_TURN_BYTES // max(1, row)), []
    while begin < max(counts):
        shares = [max(0, min(length, count - begin)) for count in counts]
        own, output = rows[begin : begin + shares[rank]], rows.new_empty((sum(shares), *rows.shape[1:]))
        sizes = [share * row for share in shares]
        comm.run([_native.Operation.all_gather_v(parts([own]), parts([output]), sizes, carrier(rows.dtype))])
        turns.append(output.split(shares))
        begin, length = begin + length, 2 * length
    if len(turns) == 1:
        return output
    # The rows are in the order of ranks, so that sums do not depend on the turns.
    arrived = [part for of_rank in zip(*turns) for part in of_rank]
    return torch.cat(arrived) if arrived else rows.new_empty((0, *rows.shape[1:]))


# Element types by their number in a head.
_TYPES = list(REDUCIBLE)
_DIMENSIONS = 12
# Number of bytes that each rank sends in the first turn.
FIRST_TURN_BYTES = 1 << 20
