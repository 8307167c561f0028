"""Helpers: a group of torch one of whose ranks dies, falls silent, or does something else."""

import multiprocessing
import os
import signal
import tempfile
import time
from datetime import timedelta
from typing import NamedTuple

SIZE, VICTIM = 4, 2
SETTLE = 0.2
LIMIT = 60
# Seconds after which an operation of a group fails, unless an event or a shorter timeout ends it before.
GROUP_TIMEOUT = 20
context = multiprocessing.get_context("fork")
# 1 for each rank of the present group whose task has ended. There is no lock, because a rank that is killed while it
# holds one would block the next group.
ended = context.Array("b", SIZE, lock=False)


class Seen(NamedTuple):
    """The error that one rank got."""

    rank: int
    seconds: float
    kind: str
    text: str


def strike(body, of_victim, blow=None, timeout=GROUP_TIMEOUT, victim=VICTIM):
    """Runs a group, and returns the error of every rank except the victim.

    Args:
        body: What every other rank does until it fails, with the rank as argument.
        of_victim: What the victim does. It has to last until the blow, if there is one.
        blow: The signal that the victim gets when all ranks have begun. ``None`` leaves the victim
            alone; it reports its error like the others.

    Returns:
        The errors by rank, with the seconds from the moment just before the signal. Without a
        signal, the seconds count from the moment at which the last rank began.
    """
    with tempfile.TemporaryDirectory() as folder:
        begun = context.Array("d", SIZE, lock=False)
        queue = context.SimpleQueue()
        ended[:] = [0] * SIZE
        tasks = [of_victim if rank == victim else body for rank in range(SIZE)]
        arguments = (f"{folder}/store", timeout, begun, queue)
        ranks = [context.Process(target=_rank, args=(rank, tasks[rank], *arguments)) for rank in range(SIZE)]
        for process in ranks:
            process.start()
        try:
            _until(lambda: all(begun) or not all(process.is_alive() for process in ranks), "a rank does not begin")
            moment = max(begun)
            if blow is not None:
                time.sleep(SETTLE)
                moment = time.monotonic()
                os.kill(ranks[victim].pid, blow)
            others = [process for rank, process in enumerate(ranks) if rank != victim or blow is None]
            seen = []
            _until(lambda: _collect(queue, seen) >= len(others), "a rank gets no error")
        finally:
            for process in ranks:
                process.kill()
            for process in ranks:
                process.join()
    return sorted(one._replace(seconds=one.seconds - moment) for one in seen)


def until_others_ended(rank):
    """Is silent as a victim until all other ranks have ended their tasks."""
    _until(lambda: sum(ended) >= SIZE - 1, "another rank gets no error")


def _until(condition, complaint):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.005)


def _collect(queue, seen):
    while not queue.empty():
        seen.append(queue.get())
    return len(seen)


def _rank(rank, task, path, timeout, begun, queue):
    import torch
    import torch.distributed as dist

    import unisono.torch  # noqa: F401 - versions of torch that look for no backends need it

    limit = timedelta(seconds=GROUP_TIMEOUT)
    dist.init_process_group("unisono", init_method=f"file://{path}", rank=rank, world_size=SIZE, timeout=limit)
    dist.barrier()
    if timeout < GROUP_TIMEOUT:
        # The ranks also meet within the timeout of the group, so a shorter one is set only when they have met.
        dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(timedelta(seconds=timeout))
    begun[rank] = time.monotonic()
    try:
        task(rank)
        seen = Seen(rank, time.monotonic(), "none", "the operation ended well")
    except BaseException as error:
        seen = Seen(rank, time.monotonic(), type(error).__name__, str(error))
    queue.put(seen)
    ended[rank] = 1
    signal.pause()  # The others shall see what happened to the victim, and not this rank's end.
