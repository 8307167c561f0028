"""Collectives of PyTorch's Gloo, by the method that bench.h states and with its output.

Arguments: ranks; milliseconds of samples and seconds at most for each size; COLLECTIVE=SIZE,SIZE ...
"""

import multiprocessing
import os
import signal
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist

SAMPLE_SECONDS, LONG_CALL_SECONDS, CALLS_MAX, SAMPLES_MIN, SAMPLES_MAX, HANGS = 1e-3, 0.05, 2000, 3, 201, 3
# A longer sample has fewer calls the next time.
MISJUDGED_SAMPLE_SECONDS = 1e-2


class Library:
    """The processes' own barrier and maximum: Gloo's barrier leaves ranks far apart."""

    def __init__(self, rank, ranks, gate, table):
        self.rank, self.ranks, self.gate, self.table = rank, ranks, gate, table

    def max_over_ranks(self, values):
        first = self.rank * SAMPLES_MAX
        self.table[first : first + len(values)] = values
        self.gate.wait()
        most = [max(self.table[rank * SAMPLES_MAX + i] for rank in range(self.ranks)) for i in range(len(values))]
        self.gate.wait()
        return most

    def sample(self, call, calls):
        self.gate.wait()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begun) / calls

    def slowest(self, call, calls):
        return self.max_over_ranks([self.sample(call, calls)])[0]


class Skipped(Exception):
    """Why there is no time. The same on every rank."""


class Inputs:
    """Small whole numbers, whose pattern is made once."""

    def __init__(self, elements):
        self.pattern = (torch.arange(elements, dtype=torch.int32) % 13 + 1).float()

    def given(self, rank, first, last):
        return self.pattern[first:last] * (rank + 1)


def prepare(inputs, what, rank, ranks, count):
    """(call, output, expected result)."""
    of_all, total = ranks * (ranks + 1) // 2, count * ranks
    first, last = rank * count, (rank + 1) * count
    given = inputs.given
    if what == "all_reduce":
        # Gloo has the in-place form only. Zeroes keep repeated sums finite.
        data = given(rank, 0, count)
        return (lambda: dist.all_reduce(data)), data, given(of_all - 1, 0, count)
    if what == "broadcast":
        data = given(0, 0, count) if rank == 0 else torch.full((count,), -1.0)
        return (lambda: dist.broadcast(data, 0)), data, given(0, 0, count)
    if what == "all_gather":
        data, output = given(rank, 0, count), torch.full((total,), -1.0)
        parts = list(output.chunk(ranks))
        return (lambda: dist.all_gather(parts, data)), output, torch.cat([given(r, 0, count) for r in range(ranks)])
    if what == "reduce_scatter":
        data, output = given(rank, 0, total), torch.full((count,), -1.0)
        scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
        return (lambda: scatter(output, data)), output, given(of_all - 1, first, last)
    data, output = given(rank, 0, total), torch.full((total,), -1.0)
    expected = torch.cat([given(r, first, last) for r in range(ranks)])
    return (lambda: dist.all_to_all_single(output, data)), output, expected


def clamp(value, least, most):
    return max(least, min(most, int(value)))


def median_time(library, call, seconds, limit):
    each = library.slowest(call, 1)
    if SAMPLES_MIN * each > limit:
        raise Skipped(f"skipped: a call takes {each:.1f} s")
    # A long call is warm and a sample at once.
    times = [each] if each >= LONG_CALL_SECONDS else []
    for _ in range(2):
        if each < LONG_CALL_SECONDS:
            each = library.slowest(call, 1)
    calls = clamp(SAMPLE_SECONDS / each, 1, CALLS_MAX)
    if calls > 1:
        each = library.slowest(call, calls)
    calls = clamp(SAMPLE_SECONDS / each, 1, CALLS_MAX)
    spent = sum(times)
    while len(times) < SAMPLES_MIN or len(times) < SAMPLES_MAX and spent < seconds:
        each = library.slowest(call, calls)
        times.append(each)
        spent += calls * each
        if calls * each > MISJUDGED_SAMPLE_SECONDS:
            calls = clamp(SAMPLE_SECONDS / each, 1, calls)
    return statistics.median(times)


def first_call(call):
    try:
        call()
    except RuntimeError as error:
        if "does not support" not in str(error):
            raise
        raise Skipped(str(error)) from error


def micros(library, inputs, what, count, seconds, limit):
    call, output, expected = prepare(inputs, what, library.rank, library.ranks, count)
    first_call(call)
    if library.max_over_ranks([float(not torch.equal(output, expected))])[0]:
        sys.exit(f"{what} of {count} elements: a wrong result")
    if what == "all_reduce":
        output.zero_()
    return median_time(library, call, seconds, limit) * 1e6


def measure(library, inputs, what, size, seconds, limit):
    signal.alarm(HANGS * limit)
    blocks = library.ranks if what not in ("all_reduce", "broadcast") else 1
    count = max(1, size // 4 // blocks)
    try:
        outcome = f"{micros(library, inputs, what, count, seconds, limit):.4f}"
    except Skipped as reason:
        outcome = f"!{reason}"
    if library.rank == 0:
        print(f"{what},{library.ranks},{count * blocks * 4},{outcome}", flush=True)


def rank_main(rank, ranks, port, gate, table, lists, seconds, limit):
    signal.alarm(HANGS * limit)
    cores = sorted(os.sched_getaffinity(0))
    if ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    library, begun = Library(rank, ranks, gate, table), time.perf_counter()
    inputs = Inputs(max(size for _, sizes in lists for size in sizes) // 4 + ranks)
    for what, sizes in lists:
        for size in sizes:
            measure(library, inputs, what, size, seconds, limit)
    if rank == 0:
        print(f"measured,{time.perf_counter() - begun:.3f}", flush=True)
    gate.wait()
    # Tearing groups down hangs now and then; there is nothing left to do.
    os._exit(0)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    ranks, milliseconds, limit = (int(word) for word in sys.argv[1:4])
    lists = [word.split("=") for word in sys.argv[4:]]
    lists = [(what, [int(size) for size in sizes.split(",")]) for what, sizes in lists]
    context = multiprocessing.get_context("fork")
    gate, table = context.Barrier(ranks), context.RawArray("d", ranks * SAMPLES_MAX)
    common = (ranks, free_port(), gate, table, lists, milliseconds / 1e3, limit)
    children = [context.Process(target=rank_main, args=(rank, *common)) for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(abs(child.exitcode) for child in children))


if __name__ == "__main__":
    main()
