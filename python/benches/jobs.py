"""Two jobs of rank processes, one for each backend, which take turns on the same machine.

The ranks of both jobs start once. A rank sleeps in a read from its pipe until the driver calls it,
so that only the job whose turn it is uses the processors.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
import traceback
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

BACKENDS = ("gloo", "unisono")
# Seconds after which a call that has not returned is taken for hanging.
LIMIT = 300.0


class Job:
    """The rank processes of one backend.

    Args:
        backend: The name of the backend in ``torch.distributed``.
        size: The number of ranks.
        folder: A folder for the store through which the ranks meet.
    """

    def __init__(self, backend, size, folder):
        self.backend, self.size = backend, size
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for rank in range(size):
            own, other = context.Pipe()
            arguments = (other, backend, rank, size, f"{folder}/{backend}-store")
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            other.close()
            self._pipes.append(own)
            self._processes.append(process)

    def start(self, function, *arguments):
        """Calls ``function(context, *arguments)`` on every rank. ``results`` gets what it returns."""
        for pipe in self._pipes:
            pipe.send((function, arguments))

    def results(self):
        """Waits for a call on all ranks, and returns its results by rank."""
        results = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(LIMIT):
                raise RuntimeError(f"rank {rank} of the {self.backend} job hangs")
            ok, value = pipe.recv()
            if not ok:
                raise RuntimeError(f"rank {rank} of the {self.backend} job failed:\n{value}")
            results.append(value)
        return results

    def call(self, function, *arguments):
        """Calls a function on every rank and returns the results by rank."""
        self.start(function, *arguments)
        return self.results()

    def kill(self):
        """Ends the processes at once."""
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe, backend, rank, size, store):
    """Runs calls of the driver on one rank, until the driver is gone."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    limit = timedelta(seconds=LIMIT)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
    context = SimpleNamespace(backend=backend, rank=rank, size=size, cpu=0.0)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, function(context, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


@contextmanager
def pair(size):
    """Starts a job of each backend, by name, and ends both at the end of the block."""
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for backend in BACKENDS:
                jobs[backend] = Job(backend, size, folder)
            for job in jobs.values():
                job.call(_ready)
            yield jobs
        finally:
            for job in jobs.values():
                job.kill()


def _ready(context):
    """Returns once the rank is in its group."""


def order(number):
    """Returns the backends, beginning with the other one in each round."""
    return BACKENDS if number % 2 == 0 else BACKENDS[::-1]


def alternate(jobs, rounds, function, arguments_of):
    """Calls a function in rounds, in one job after the other, and returns its results.

    Args:
        arguments_of: Returns the arguments for a backend.

    Returns:
        A dictionary from backend to a list of the results by rank, one for each round.
    """
    found = {backend: [] for backend in BACKENDS}
    for number in range(rounds):
        for backend in order(number):
            found[backend].append(jobs[backend].call(function, *arguments_of(backend)))
    return found


def measure(jobs, rounds, aim, most, make, calls, *arguments):
    """Returns the calls of a round and the seconds of a call in each round, by backend, and the ratio of the medians.

    Args:
        aim: The seconds that a round takes, about.
        most: The greatest number of calls in a round.
        make: Makes what is called from the arguments, and returns the seconds of a call.
        calls: Makes so many calls, and returns their seconds.
    """
    numbers = {}
    for backend, job in jobs.items():
        numbers[backend] = min(most, max(1, int(aim / max(job.call(make, *arguments)))))
    found = alternate(jobs, rounds, calls, lambda backend: (numbers[backend],))
    row = {"ranks": jobs["gloo"].size, "calls": numbers}
    for backend in BACKENDS:
        row[f"{backend}_seconds"] = [round(max(ranks) / numbers[backend], 9) for ranks in found[backend]]
        row[backend] = statistics.median(row[f"{backend}_seconds"])
    row["ratio"] = row["gloo"] / row["unisono"]
    return row


def timed(context, call, calls):
    """Returns the seconds of some calls in a row, and the processor time used while asleep."""
    import torch.distributed as dist

    asleep = time.process_time() - context.cpu if context.cpu else 0.0
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - start
    context.cpu = time.process_time()
    return seconds, asleep
