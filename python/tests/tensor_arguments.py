"""Calls of torch.distributed whose arguments differ between two ranks, or make no sense.

Each function is one rank, and returns pairs of what it has and what it should have.
"""

import torch
import torch.distributed as dist

SIZE = 2


def _uneven_all_gather(rank):
    dist.all_gather(outputs := [torch.zeros(2 + peer) for peer in range(SIZE)], torch.full((2 + rank,), rank + 1.0))
    return [(output, torch.full((2 + peer,), peer + 1.0)) for peer, output in enumerate(outputs)]


def _uneven_all_gather_into_tensor(rank):
    dist.all_gather_into_tensor(output := torch.zeros(5), torch.full((2 + rank,), rank + 1.0))
    return [(output, torch.tensor([1.0, 1, 2, 2, 2]))]


def _uneven_gather(rank):
    outputs = [torch.zeros(2 + peer) for peer in range(SIZE)] if rank == 1 else None
    dist.gather(torch.full((2 + rank,), rank + 1.0), outputs, 1)
    return [(output, torch.full((2 + peer,), peer + 1.0)) for peer, output in enumerate(outputs or [])]


def _uneven_scatter(rank):
    inputs = [torch.full((2 + peer,), peer + 1.0) for peer in range(SIZE)] if rank == 1 else None
    dist.scatter(output := torch.zeros(2 + rank), inputs, 1)
    return [(output, torch.full((2 + rank,), rank + 1.0))]


def _uneven_reduce_scatter(rank):
    dist.reduce_scatter(output := torch.zeros(2 + rank), [torch.full((2 + peer,), peer + 1.0) for peer in range(SIZE)])
    return [(output, torch.full((2 + rank,), SIZE * (rank + 1.0)))]


def _uneven_reduce_scatter_tensor(rank):
    dist.reduce_scatter_tensor(torch.zeros(2 + rank), torch.ones(5))
    return [(torch.zeros(1), torch.ones(1))]


def _uneven_all_to_all_single(rank):
    sends, receives = [1 + rank, 2], [row[rank] for row in ([1, 2], [2, 2])]
    output = torch.zeros(sum(receives))
    dist.all_to_all_single(output, torch.full((sum(sends),), rank + 1.0), receives, sends)
    return [(output, torch.tensor([peer + 1.0 for peer in range(SIZE) for _ in range(receives[peer])]))]


def _splits_on_one_rank(rank):
    splits = [2, 2] if rank == 0 else None
    dist.all_to_all_single(output := torch.zeros(4), torch.full((4,), rank + 1.0), splits, splits)
    return [(output, torch.tensor([1.0, 1, 2, 2]))]


def _other_shape(rank):
    dist.all_reduce(tensor := torch.full([(2, 3), (3, 2)][rank], 1.0))
    return [(tensor, torch.full_like(tensor, 2))]


def _other_size(rank):
    dist.all_reduce(tensor := torch.full((3 + rank,), 1.0))
    return [(tensor, torch.full_like(tensor, 2))]


def _other_type(rank):
    dist.all_reduce(tensor := torch.ones(4, dtype=[torch.float32, torch.int32][rank]))
    return [(tensor, torch.full_like(tensor, 2))]


def _other_sparse_size(rank):
    dist.all_reduce(tensor := torch.ones(3 + rank).to_sparse())
    return [(tensor, torch.full((3 + rank,), 2.0))]


def _shorter_message(rank):
    if rank == 0:
        dist.send(torch.ones(2), 1)
        return []
    dist.recv(tensor := torch.zeros(4), 0)
    return [(tensor, torch.ones(4))]


def _one_tensor_twice(rank):
    output = torch.zeros(3)
    dist.all_gather([output, output], torch.full((3,), rank + 1.0))
    return [(output, torch.full((3,), 2.0))]


def _in_place(rank):
    tensor = torch.arange(4.0) + rank
    dist.all_to_all_single(tensor, tensor)
    return [(tensor, torch.cat([(torch.arange(4.0) + peer)[2 * rank : 2 * rank + 2] for peer in range(SIZE)]))]


def _root_below_zero(rank):
    dist.broadcast(torch.ones(2), group_src=-1)
    return []


def _split_below_zero(rank):
    dist.all_to_all_single(torch.zeros(4), torch.ones(4), [-1, 5], [-1, 5])
    return []


def _no_rank_to_send_to(rank):
    dist.send(torch.ones(2), group_dst=7)
    return []


# Calls whose arguments differ between ranks or make no sense, by what they are.
ARGUMENTS = {
    "`all_gather` of lists of other lengths": _uneven_all_gather,
    "`all_gather_into_tensor` of inputs of other lengths": _uneven_all_gather_into_tensor,
    "`gather` of other lengths": _uneven_gather,
    "`scatter` of other lengths": _uneven_scatter,
    "`reduce_scatter` of other lengths": _uneven_reduce_scatter,
    "`reduce_scatter_tensor` of other lengths": _uneven_reduce_scatter_tensor,
    "`all_to_all_single` of other lengths": _uneven_all_to_all_single,
    "`all_to_all_single` with splits on one rank": _splits_on_one_rank,
    "`all_to_all_single` in place": _in_place,
    "`all_gather` into one tensor twice": _one_tensor_twice,
    "`all_reduce` of other shapes with as many elements": _other_shape,
    "`all_reduce` of other numbers of elements": _other_size,
    "`all_reduce` of other types": _other_type,
    "`all_reduce` of sparse tensors of other sizes": _other_sparse_size,
    "`recv` of a shorter message": _shorter_message,
    "`broadcast` with a root below zero": _root_below_zero,
    "`all_to_all_single` with a split below zero": _split_below_zero,
    "`send` to a rank that does not exist": _no_rank_to_send_to,
}
