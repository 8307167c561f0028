"""Kinds of tensors, and calls of torch.distributed with them.

Each call is one rank, and returns pairs of what it has and what it should have.
"""

from typing import Callable, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

SIZE = 2


class Skipped(Exception):
    """The call is not for this kind."""


class Kind(NamedTuple):
    """A kind of tensor. `wrap` makes one of a contiguous tensor with the same elements.

    Elements of some kinds share memory, so that they receive no results: Gloo writes beyond it.
    """

    name: str
    dtype: torch.dtype = torch.float32
    shape: tuple = (4, 3)
    wrap: Callable = lambda tensor: tensor
    receives: bool = True

    def plain(self, seed, rows=1):
        """Returns a contiguous tensor whose first dimension is a multiple of that of the kind."""
        shape = (rows * self.shape[0], *self.shape[1:]) if self.shape else (rows,) * (rows > 1)
        values = torch.arange(torch.Size(shape).numel()).reshape(shape) % 2 + seed
        return (values % 2 if self.dtype is torch.bool else values).to(torch.float32).to(self.dtype)

    def make(self, seed, rows=1):
        return self.wrap(self.plain(seed, rows))

    def blank(self, rows=1):
        """Returns a tensor for a result."""
        return self.make(0, rows) if self.receives else self.make(0, rows).contiguous()

    def in_place(self, seed):
        """Returns a tensor for a call that reads and writes it."""
        if not self.receives:
            raise Skipped
        return self.make(seed)

    def sum(self, tensors):
        total = sum(wide(tensor) for tensor in tensors)
        if self.dtype is torch.bool:
            return total != 0
        return total.to(self.dtype) if self.dtype.is_complex else total.to(torch.float32).to(self.dtype)


def wide(tensor):
    """Returns a tensor in a type that holds all elements of the others."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _strided(tensor):
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def _inference(tensor):
    with torch.inference_mode():
        return tensor.clone()


def _parameter(tensor):
    return torch.nn.Parameter(tensor)


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip
KINDS = [
    Kind("`float32`"),
    *[Kind(f"`{str(dtype).removeprefix('torch.')}`", dtype) for dtype in DTYPES],
    Kind("0-d", shape=()),
    Kind("without elements", shape=(0, 3)),
    Kind("transposed", wrap=lambda tensor: tensor.t().contiguous().t()),
    Kind("every second element", wrap=_strided),
    Kind("view into a longer one", wrap=lambda tensor: torch.cat([tensor] * 3)[len(tensor) : 2 * len(tensor)]),
    Kind("expanded", shape=(4, 1), wrap=lambda tensor: tensor[:, 0:1].expand(-1, 3), receives=False),
    Kind("conjugate view", torch.complex64, wrap=lambda tensor: tensor.conj().resolve_conj().conj()),
    Kind("negative view", wrap=lambda tensor: torch._neg_view(-tensor)),
    Kind("inference", wrap=_inference),
    Kind("parameter", wrap=_parameter),
    Kind("sparse COO", wrap=lambda tensor: tensor.to_sparse()),
    Kind("sparse CSR", wrap=lambda tensor: tensor.to_sparse_csr()),
    Kind("`meta`", wrap=lambda tensor: tensor.to("meta")),
]


def _all(kind, rows=1):
    """Returns the inputs of all ranks."""
    return [kind.plain(rank, rows) for rank in range(SIZE)]


def all_reduce(kind, rank):
    dist.all_reduce(tensor := kind.in_place(rank))
    return [(tensor, kind.sum(_all(kind)))]


def all_reduce_async(kind, rank):
    dist.all_reduce(tensor := kind.in_place(rank), async_op=True).wait()
    return [(tensor, kind.sum(_all(kind)))]


def reduce(kind, rank):
    dist.reduce(tensor := kind.in_place(rank), 1)
    return [(tensor, kind.sum(_all(kind)))] if rank == 1 else []


def broadcast(kind, rank):
    dist.broadcast(tensor := kind.in_place(rank), 1)
    return [(tensor, kind.plain(1))]


def all_gather(kind, rank):
    dist.all_gather(outputs := [kind.blank() for _ in range(SIZE)], kind.make(rank))
    return zip(outputs, _all(kind))


def all_gather_into_tensor(kind, rank):
    dist.all_gather_into_tensor(output := kind.blank(SIZE), kind.make(rank))
    return [(output, torch.cat([tensor.reshape(-1, *kind.shape[1:]) for tensor in _all(kind)]))]


def gather(kind, rank):
    dist.gather(kind.make(rank), outputs := [kind.blank() for _ in range(SIZE)] if rank == 1 else None, 1)
    return zip(outputs or [], _all(kind))


def scatter(kind, rank):
    inputs = [kind.make(peer) for peer in range(SIZE)] if rank == 1 else None
    dist.scatter(output := kind.blank(), inputs, 1)
    return [(output, kind.plain(rank))]


def reduce_scatter(kind, rank):
    dist.reduce_scatter(output := kind.blank(), [kind.make(rank + peer) for peer in range(SIZE)])
    return [(output, kind.sum(kind.plain(rank + peer) for peer in range(SIZE)))]


def reduce_scatter_tensor(kind, rank):
    dist.reduce_scatter_tensor(output := kind.blank(), kind.make(rank, SIZE))
    total = kind.sum(_all(kind, SIZE))
    return [(output, total.reshape(SIZE, *kind.shape)[rank])]


def all_to_all(kind, rank):
    dist.all_to_all(outputs := [kind.blank() for _ in range(SIZE)], [kind.make(rank + peer) for peer in range(SIZE)])
    return zip(outputs, [kind.plain(rank + peer) for peer in range(SIZE)])


def _exchanged(kind, rank):
    parts = [tensor.reshape(SIZE, *kind.shape)[rank] for tensor in _all(kind, SIZE)]
    return torch.cat([part.reshape(-1, *kind.shape[1:]) for part in parts])


def all_to_all_single(kind, rank):
    dist.all_to_all_single(output := kind.blank(SIZE), kind.make(rank, SIZE))
    return [(output, _exchanged(kind, rank))]


def send_and_recv(kind, rank):
    if rank == 0:
        dist.send(kind.make(1), 1)
        return []
    dist.recv(tensor := kind.blank(), 0)
    return [(tensor, kind.plain(1))]


def recv_of_any_source(kind, rank):
    if rank == 0:
        dist.send(kind.make(1), 1)
        return []
    source = dist.recv(tensor := kind.blank())
    return [(tensor, kind.plain(1)), (torch.tensor(source), torch.tensor(0))]


def batch_isend_irecv(kind, rank):
    send = dist.P2POp(dist.isend, kind.make(rank), 1 - rank)
    receive = dist.P2POp(dist.irecv, output := kind.blank(), 1 - rank)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return [(output, kind.plain(1 - rank))]


def object_collectives(kind, rank):
    dist.all_gather_object(everything := [None] * SIZE, kind.make(rank))
    dist.broadcast_object_list(shared := [kind.make(rank)], 1)
    dist.gather_object(kind.make(rank), gathered := [None] * SIZE if rank == 1 else None, 1)
    dist.scatter_object_list(own := [None], [kind.make(peer) for peer in range(SIZE)] if rank == 1 else None, 1)
    if rank == 0:
        dist.send_object_list([kind.make(1)], 1)
        sent = []
    else:
        dist.recv_object_list(sent := [None], 0)
    pairs = [*zip(everything, _all(kind)), (shared[0], kind.plain(1)), *zip(gathered or [], _all(kind))]
    return [*pairs, (own[0], kind.plain(rank)), *[(tensor, kind.plain(1)) for tensor in sent]]


def functional_all_reduce(kind, rank):
    return [(functional.all_reduce(kind.make(rank), "sum", dist.group.WORLD), kind.sum(_all(kind)))]


def functional_all_gather(kind, rank):
    output = functional.all_gather_single(kind.make(rank), 0, dist.group.WORLD)
    return [(output, torch.cat([tensor.reshape(-1, *kind.shape[1:]) for tensor in _all(kind)]))]


def functional_reduce_scatter(kind, rank):
    output = functional.reduce_scatter_single(kind.make(rank, SIZE), "sum", 0, dist.group.WORLD)
    return [(output, kind.sum(_all(kind, SIZE)).reshape(SIZE, *kind.shape)[rank])]


def functional_all_to_all(kind, rank):
    output = functional.all_to_all_single(kind.make(rank, SIZE), None, None, dist.group.WORLD)
    return [(output, _exchanged(kind, rank))]


def _backward(kind, rank, rows, call, factors):
    """Returns the gradient of a call's input beside what it is: a factor of each rank for each element."""
    if not (kind.dtype.is_floating_point or kind.dtype.is_complex):
        raise Skipped
    tensor = kind.make(rank, rows).detach().requires_grad_()
    output = call(tensor)
    output.backward(torch.full_like(output, rank + 1))
    return [(tensor.grad, factors(kind.plain(0, rows)))]


def autograd_of_all_gather(kind, rank):
    call = lambda tensor: functional.all_gather_single_autograd(tensor, 0, dist.group.WORLD)  # noqa: E731
    return _backward(kind, rank, 1, call, lambda values: torch.full_like(values, 3))


def autograd_of_reduce_scatter(kind, rank):
    call = lambda tensor: functional.reduce_scatter_single_autograd(tensor, "sum", 0, dist.group.WORLD)  # noqa: E731
    return _backward(kind, rank, SIZE, call, _by_peer)


def autograd_of_all_to_all(kind, rank):
    call = lambda tensor: functional.all_to_all_single_autograd(tensor, None, None, dist.group.WORLD)  # noqa: E731
    return _backward(kind, rank, SIZE, call, _by_peer)


def _by_peer(values):
    return torch.cat([torch.full_like(half, peer + 1) for peer, half in enumerate(values.chunk(SIZE))])


CALLS = [
    all_reduce, all_reduce_async, reduce, broadcast, all_gather, all_gather_into_tensor, gather, scatter,
    reduce_scatter, reduce_scatter_tensor, all_to_all, all_to_all_single, send_and_recv, recv_of_any_source, batch_isend_irecv,
    object_collectives, functional_all_reduce, functional_all_gather, functional_reduce_scatter,
    functional_all_to_all,
    autograd_of_all_gather, autograd_of_reduce_scatter, autograd_of_all_to_all,
]  # fmt: skip
