"""Every collective of torch.distributed, as a function of a tensor that a compiler may be given.

A function takes a tensor of an even number of rows, the rank and the number of ranks, which is two, and returns
tensors. What it does before and after the collective belongs to the graph, and the collective between them does not,
unless it is a functional one.
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

# By the name in torch.distributed, and what is special about the call.
CALLS = {}
# By the name in the functional collectives. They are part of the graph.
FUNCTIONAL = {}
# Public names of torch.distributed with these parts are collectives, and need a call here.
PARTS = ("reduce", "gather", "scatter", "all_to_all", "broadcast", "send", "recv", "barrier")
# Types of arguments, which contain such parts.
TYPES = ("Options", "ReduceOp", "reduce_op", "reconfigure")


def collectives_of_torch():
    """Returns the names of the collectives that this version of torch has."""
    return [name for name in dist.distributed_c10d.__all__
            if any(part in name for part in PARTS) and not any(kind in name for kind in TYPES)]  # fmt: skip


def call(function):
    CALLS[function.__name__] = function


def functional_call(function):
    FUNCTIONAL[function.__name__] = function


def rows(x, count):
    return x.new_zeros((count, *x.shape[1:]))


def others(x, size):
    return [torch.zeros_like(x) for _ in range(size)]


@call
def all_reduce(x, rank, size):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


@call
def all_reduce__max(x, rank, size):
    y = x * 2
    dist.all_reduce(y, dist.ReduceOp.MAX)
    return y + 1


@call
def all_reduce__async(x, rank, size):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1


@call
def all_reduce__future(x, rank, size):
    return dist.all_reduce(x * 2, async_op=True).get_future().wait()[0] + 1


@call
def all_reduce_coalesced(x, rank, size):
    y = [x * 2, x + 1]
    dist.all_reduce_coalesced(y)
    return y[0] + y[1]


@call
def broadcast(x, rank, size):
    y = x * 2
    dist.broadcast(y, 0)
    return y + 1


@call
def broadcast__async(x, rank, size):
    y = x * 2
    dist.broadcast(y, 1, async_op=True).wait()
    return y + 1


@call
def reduce(x, rank, size):
    y = x * 2
    dist.reduce(y, 0)
    return y + 1 if rank == 0 else x


@call
def all_gather(x, rank, size):
    outputs = others(x, size)
    dist.all_gather(outputs, x * 2)
    return torch.cat(outputs) + 1


@call
def all_gather_single(x, rank, size):
    y = rows(x, size * x.shape[0])
    dist.all_gather_single(y, x * 2)
    return y + 1


@call
def all_gather_into_tensor(x, rank, size):
    y = rows(x, size * x.shape[0])
    dist.all_gather_into_tensor(y, x * 2)
    return y + 1


@call
def all_gather_coalesced(x, rank, size):
    outputs = [others(x, 2) for _ in range(size)]
    dist.all_gather_coalesced(outputs, [x * 2, x + 5])
    return torch.cat([torch.cat(tensors) for tensors in outputs])


@call
def gather(x, rank, size):
    outputs = others(x, size) if rank == 0 else None
    dist.gather(x * 2, outputs, 0)
    return torch.cat(outputs) + 1 if rank == 0 else x


@call
def gather_single(x, rank, size):
    y = rows(x, size * x.shape[0]) if rank == 0 else None
    dist.gather_single(x * 2, y, 0)
    return y + 1 if rank == 0 else x


@call
def gather_into_tensor(x, rank, size):
    y = rows(x, size * x.shape[0]) if rank == 0 else None
    dist.gather_into_tensor(x * 2, y, 0)
    return y + 1 if rank == 0 else x


@call
def scatter(x, rank, size):
    y = torch.zeros_like(x)
    dist.scatter(y, [x * (2 + peer) for peer in range(size)] if rank == 0 else None, 0)
    return y + 1


@call
def reduce_scatter(x, rank, size):
    y = torch.zeros_like(x)
    dist.reduce_scatter(y, [x * (2 + peer) for peer in range(size)])
    return y + 1


@call
def reduce_scatter_single(x, rank, size):
    y = rows(x, x.shape[0] // size)
    dist.reduce_scatter_single(y, x * 2)
    return y + 1


@call
def reduce_scatter_tensor(x, rank, size):
    y = rows(x, x.shape[0] // size)
    dist.reduce_scatter_tensor(y, x * 2)
    return y + 1


@call
def all_to_all_single(x, rank, size):
    y = torch.zeros_like(x)
    dist.all_to_all_single(y, x * 2)
    return y + 1


@call
def all_to_all_single__splits(x, rank, size):
    y, splits = torch.zeros_like(x), uneven(x, rank)
    dist.all_to_all_single(y, x * 2, splits, splits)
    return y + 1


def uneven(x, rank):
    return [1, x.shape[0] - 1] if rank == 0 else [x.shape[0] - 1, 1]


@call
def all_to_all(x, rank, size):
    outputs = others(x, size)
    dist.all_to_all(outputs, [x * (2 + peer) for peer in range(size)])
    return torch.cat(outputs) + 1


@call
def barrier(x, rank, size):
    y = x * 2
    dist.barrier()
    return y + 1


@call
def monitored_barrier(x, rank, size):
    y = x * 2
    dist.monitored_barrier()
    return y + 1


@call
def send(x, rank, size):
    y = x * 2
    if rank == 0:
        dist.send(y, 1)
    else:
        dist.recv(y, 0)
    return y + 1


@call
def isend(x, rank, size):
    y, z = x * 2, torch.zeros_like(x)
    works = dist.isend(y, 1 - rank), dist.irecv(z, 1 - rank)
    works[0].wait()
    works[1].wait()
    return z + 1


# Each of these names is called in the one before.
CALLS["recv"], CALLS["irecv"] = send, isend


@call
def batch_isend_irecv(x, rank, size):
    y, z = x * 2, torch.zeros_like(x)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, y, 1 - rank), dist.P2POp(dist.irecv, z, 1 - rank)]):
        work.wait()
    return z + 1


@call
def all_gather_object(x, rank, size):
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    return x * 2 + objects[1]["rank"]


@call
def gather_object(x, rank, size):
    objects = [None] * size if rank == 0 else None
    dist.gather_object(rank, objects, 0)
    return x * 2 + (objects[1] if rank == 0 else 0)


@call
def broadcast_object_list(x, rank, size):
    objects = [rank + 7]
    dist.broadcast_object_list(objects, 0)
    return x * 2 + objects[0]


@call
def scatter_object_list(x, rank, size):
    objects = [None]
    dist.scatter_object_list(objects, [3, 4] if rank == 0 else None, 0)
    return x * 2 + objects[0]


@call
def send_object_list(x, rank, size):
    objects = [rank + 5]
    if rank == 0:
        dist.send_object_list(objects, 1)
    else:
        dist.recv_object_list(objects, 0)
    return x * 2 + objects[0]


CALLS["recv_object_list"] = send_object_list


def group():
    return dist.group.WORLD


@functional_call
def broadcast_functional(x, rank, size):
    return functional.broadcast(x * 2, 0, group()) + 1


for _op in ("sum", "max", "min", "avg", "product"):

    def _all_reduce(x, rank, size, op=_op):
        return functional.all_reduce(x * 2, op, group()) + 1

    FUNCTIONAL[f"all_reduce_{_op}"] = _all_reduce


@functional_call
def all_gather_tensor(x, rank, size):
    return functional.all_gather_tensor(x * 2, 0, group()) + 1


@functional_call
def all_gather_tensor_in_columns(x, rank, size):
    return functional.all_gather_tensor(x * 2, 1, group()) + 1


@functional_call
def reduce_scatter_tensor_functional(x, rank, size):
    return functional.reduce_scatter_tensor(x * 2, "sum", 0, group()) + 1


@functional_call
def all_reduce_coalesced_functional(x, rank, size):
    return torch.cat(functional.all_reduce_coalesced([x * 2, x + 3], "sum", group())) + 1


@functional_call
def all_gather_into_tensor_coalesced(x, rank, size):
    return torch.cat(functional.all_gather_into_tensor_coalesced([x * 2, x + 3], group())) + 1


@functional_call
def reduce_scatter_tensor_coalesced(x, rank, size):
    return torch.cat(functional.reduce_scatter_tensor_coalesced([x * 2, x + 3], "sum", [0, 0], group())) + 1


@functional_call
def all_to_all_single_functional(x, rank, size):
    return functional.all_to_all_single(x * 2, None, None, group()) + 1


@functional_call
def all_to_all_single_functional_splits(x, rank, size):
    return functional.all_to_all_single(x * 2, uneven(x, rank), uneven(x, rank), group()) + 1


@functional_call
def permute_tensor(x, rank, size):
    return functional.permute_tensor(x.reshape(-1) * 2, [1, 0], group()) + 1
