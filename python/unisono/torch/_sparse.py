"""all_reduce of sparse tensors: every rank gathers all entries and adds those with equal indices."""

import torch

from unisono import _native
from unisono.errors import InvalidUsage, Unsupported
from unisono.torch._profile import entry
from unisono.torch._tensors import even, op_name, parts
from unisono.torch._work import UnisonoWork


def all_reduce(backend, tensors, opts):
    """Adds sparse tensors of all ranks. It ends before it returns."""
    if op_name(opts.reduceOp) != "SUM":
        raise Unsupported("sparse tensors can only be summed; call to_dense() first")
    if any(not tensor.is_sparse or tensor.shape != tensors[0].shape for tensor in tensors):
        raise InvalidUsage("all tensors of a sparse all_reduce need the same layout and shape")
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
    counts = torch.zeros(size, dtype=torch.int64)
    count = torch.tensor([values.shape[0]], dtype=torch.int64)
    comm.run([even("all_gather", torch.int64, [count], [counts])])
    all_indices = _gather(comm, indices, counts)
    all_values = _gather(comm, values, counts)
    total = torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape).coalesce()
    with torch.no_grad():
        tensor.copy_(total)


def _gather(comm, rows, counts):
    """Returns the rows of all ranks, of which rank i has ``counts[i]``."""
    output = rows.new_empty((int(counts.sum()), *rows.shape[1:]))
    row = rows.element_size() * (rows[0].numel() if len(rows) else output[:1].numel())
    sizes = [int(count) * row for count in counts]
    comm.run([_native.Operation.all_gather_v(parts([rows]), parts([output]), sizes)])
    return output
