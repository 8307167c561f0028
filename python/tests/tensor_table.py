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

import torch
import torch.distributed as dist

from tensor_arguments import ARGUMENTS
from tensor_calls import CALLS, KINDS, SIZE, Skipped, wide

# Seconds after which an operation of a group fails, and after which a process is taken for one that hangs.
TIMEOUT, HANG = 5, 30
# Calls that may have sent a message before they were refused.
MESSAGES = ["batch_isend_irecv", "object_collectives"]
OUTCOMES = ["right", "refused", "fails", "hangs", "wrong", "ends"]


def _cells():
    for kind in KINDS:
        for call in CALLS:
            yield kind.name, call.__name__, lambda rank, kind=kind, call=call: call(kind, rank)
    for name, body in ARGUMENTS.items():
        yield "arguments", name, body


CELLS = list(_cells())


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
        arguments = [(rank, backend, begin, folder, writer) for rank, (_, writer) in enumerate(pipes)]
        ranks = [context.Process(target=_rank, args=one) for one in arguments]
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
        has_left_message = outcome == "refused" and CELLS[number][1] in MESSAGES
        if outcome != other or outcome == "hangs" or has_left_message or _is_broken():
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
    return torch.equal(wide(got).reshape(-1), wide(expected).reshape(-1))
