"""Calls of torch.distributed with tensors of every kind: what a backend does with each pair of them.

A cell is a call with a kind of tensor. Its outcome is `right` if all ranks have the values that one process
computes, `wrong` if they have others, `refused` if every rank gets an error, and otherwise the worst of what
happens: `hangs` is an error of time, `fails` is an error on some ranks, and `ends` is the end of a process.
"""

import multiprocessing
import os
import resource
import tempfile
import time
from datetime import timedelta
from typing import Callable, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

SIZE = 2
# Seconds after which an operation of a group fails, and after which a process is taken for one that hangs.
TIMEOUT, HANG = 5, 30
OUTCOMES = ["right", "refused", "fails", "hangs", "wrong", "ends"]


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
        wide = sum(_wide(tensor) for tensor in tensors)
        if self.dtype is torch.bool:
            return wide != 0
        return wide.to(self.dtype) if self.dtype.is_complex else wide.to(torch.float32).to(self.dtype)


def _wide(tensor):
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
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip
KINDS = [
    Kind("`float32`"),
    *[Kind(f"`{str(dtype).removeprefix('torch.')}`", dtype) for dtype in DTYPES],
    Kind("0-d", shape=()),
    Kind("without elements", shape=(0, 3)),
    Kind("transposed", wrap=lambda tensor: tensor.t().contiguous().t()),
    Kind("every second element", wrap=_strided),
    Kind("view into a longer one", wrap=lambda tensor: torch.cat([tensor, tensor, tensor])[len(tensor) : 2 * len(tensor)]),
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
    calls = [dist.P2POp(dist.isend, kind.make(rank), 1 - rank), dist.P2POp(dist.irecv, output := kind.blank(), 1 - rank)]
    for work in dist.batch_isend_irecv(calls):
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
    all_reduce, all_reduce_async, reduce, broadcast, all_gather, all_gather_into_tensor, gather, scatter, reduce_scatter,
    reduce_scatter_tensor, all_to_all, all_to_all_single, send_and_recv, recv_of_any_source, batch_isend_irecv,
    object_collectives, functional_all_reduce, functional_all_gather, functional_reduce_scatter, functional_all_to_all,
    autograd_of_all_gather, autograd_of_reduce_scatter, autograd_of_all_to_all,
]  # fmt: skip


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

CELLS = [(kind.name, call.__name__, lambda rank, kind=kind, call=call: call(kind, rank)) for kind in KINDS for call in CALLS]
CELLS += [("arguments", name, body) for name, body in ARGUMENTS.items()]


def outcomes_of(backend):
    """Returns the outcome of every cell with a backend, by kind and call."""
    found, begin = {}, 0
    while begin < len(CELLS):
        of_ranks = _run(backend, begin)
        reached = max(map(len, of_ranks))
        for number in range(reached):
            # A rank without an outcome ended in this cell.
            outcomes = {of_rank[number] if number < len(of_rank) else "ends" for of_rank in of_ranks}
            found[CELLS[begin + number][:2]] = _of_all(outcomes)
        if reached == 0:
            found[CELLS[begin][:2]] = "ends"
        begin += max(1, reached)
        if "VERBOSE" in os.environ: print(backend, begin, CELLS[begin-1][:2], found[CELLS[begin-1][:2]], time.time(), flush=True)
    return found


def _of_all(outcomes):
    if len(outcomes) == 1:
        return outcomes.pop()
    if outcomes <= {"right", "refused", "fails"}:
        return "fails"
    return max(outcomes - {"skipped"}, key=OUTCOMES.index)


def _run(backend, begin):
    """Runs cells in processes until one of them breaks the group, and returns the outcomes of each rank."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(SIZE)]
        ranks = [context.Process(target=_rank, args=(rank, backend, begin, folder, pipes[rank][1])) for rank in range(SIZE)]
        for process, (_, writer) in zip(ranks, pipes):
            process.start()
            writer.close()
        of_ranks, deadline = [[] for _ in ranks], time.monotonic() + HANG
        while any(process.is_alive() for process in ranks) and time.monotonic() < deadline:
            time.sleep(0.002)
            if _receive(pipes, of_ranks):
                deadline = time.monotonic() + HANG
        for process in ranks:
            process.kill()
            process.join()
        _receive(pipes, of_ranks)
    return of_ranks


def _receive(pipes, of_ranks):
    received = False
    for (reader, _), outcomes in zip(pipes, of_ranks):
        try:
            while reader.poll():
                outcomes.append(reader.recv())
                received = True
        except EOFError:
            pass
    return received


def _rank(rank, backend, begin, folder, writer):
    # What C++ prints and writes when it ends a process is no part of a test's output.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    import unisono.torch  # noqa: F401 - versions of torch that look for no backends need it

    limit = timedelta(seconds=TIMEOUT)
    store = dist.FileStore(f"{folder}/store", SIZE)
    store.set_timeout(timedelta(seconds=HANG))
    dist.init_process_group(backend, store=store, rank=rank, world_size=SIZE, timeout=limit)
    for number in range(begin, len(CELLS)):
        outcome = _outcome(CELLS[number][2], rank)
        writer.send(outcome)
        # Both ranks go on, or neither: what one of them sent is not for the next cell.
        store.set(f"{number}/{rank}", outcome)
        other = store.get(f"{number}/{1 - rank}").decode()
        if outcome != other or outcome == "hangs" or _is_broken():
            break
    os._exit(0)


def _is_broken():
    try:
        dist.all_reduce(total := torch.ones(1))
        return total.item() != SIZE
    except RuntimeError:
        return True


def _outcome(body, rank):
    try:
        pairs = list(body(rank))
    except Skipped:
        return "skipped"
    except Exception as error:
        text = f"{type(error).__name__} {error}"
        return "hangs" if "timeout" in text.lower() or "timed out" in text.lower() else "refused"
    return "right" if all(_is_equal(*pair) for pair in pairs) else "wrong"


def _is_equal(got, expected):
    if got.device.type == "meta":
        return got.shape == expected.shape and got.dtype is expected.dtype
    got = got.detach()
    got = got.to_dense() if got.layout is not torch.strided else got.resolve_conj().resolve_neg()
    got = got.contiguous().clone()
    if got.dtype is not expected.dtype:
        return False
    # The expanded kind repeats its elements.
    expected = expected.expand_as(got) if got.dim() == expected.dim() else expected
    return torch.equal(_wide(got).reshape(-1), _wide(expected).reshape(-1))
