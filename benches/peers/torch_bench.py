"""One collective of PyTorch's Gloo, by the method that bench.h states.

Arguments: ranks, collective, sizes with commas, milliseconds for each size, seconds after which to give up.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist

SAMPLE_SECONDS, LONG_CALL_SECONDS, CALLS_MAX, SAMPLES_MAX = 1e-3, 0.3, 2000, 201


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


def given(rank, total):
    return (torch.arange(total) % 13 + 1).float() * (rank + 1)


def prepare(what, rank, ranks, count):
    """(call, output, expected result)."""
    of_all, total = ranks * (ranks + 1) // 2, count * ranks
    first, last = rank * count, (rank + 1) * count
    if what == "all_reduce":
        # Gloo has the in-place form only. Zeroes keep repeated sums finite.
        data = given(rank, count)
        return (lambda: dist.all_reduce(data)), data, given(0, count) * of_all
    if what == "broadcast":
        data = given(0, count) if rank == 0 else torch.full((count,), -1.0)
        return (lambda: dist.broadcast(data, 0)), data, given(0, count)
    if what == "all_gather":
        data, output = given(rank, count), torch.full((total,), -1.0)
        parts = list(output.chunk(ranks))
        return (lambda: dist.all_gather(parts, data)), output, torch.cat([given(r, count) for r in range(ranks)])
    if what == "reduce_scatter":
        data, output = given(rank, total), torch.full((count,), -1.0)
        scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
        return (lambda: scatter(output, data)), output, given(0, total)[first:last] * of_all
    data, output = given(rank, total), torch.full((total,), -1.0)
    expected = torch.cat([given(r, total)[first:last] for r in range(ranks)])
    return (lambda: dist.all_to_all_single(output, data)), output, expected


def clamp(value, least, most):
    return max(least, min(most, int(value)))


def median_time(library, call, seconds):
    each = library.slowest(call, 1)
    for _ in range(2):
        if each < LONG_CALL_SECONDS:
            each = library.slowest(call, 1)
    calls = clamp(SAMPLE_SECONDS / each, 1, CALLS_MAX)
    if calls > 1:
        each = library.slowest(call, calls)
    calls = clamp(SAMPLE_SECONDS / each, 1, CALLS_MAX)
    worth = calls * each
    samples = clamp(seconds / worth, 3 if worth > 1 else 5, SAMPLES_MAX)
    times = sorted(library.max_over_ranks([library.sample(call, calls) for _ in range(samples)]))
    return (times[(samples - 1) // 2] + times[samples // 2]) / 2


def measure(library, what, size, seconds):
    ranks, blocks = library.ranks, what not in ("all_reduce", "broadcast")
    count = max(1, size // 4 // (ranks if blocks else 1))
    call, output, expected = prepare(what, library.rank, ranks, count)
    try:
        call()
    except RuntimeError as error:
        if "does not support" not in str(error):
            raise
        # The same on every rank: nobody is left waiting.
        print(error, file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    if library.max_over_ranks([float(not torch.equal(output, expected))])[0]:
        sys.exit(f"{what} of {size} bytes: a wrong result")
    if what == "all_reduce":
        output.zero_()
    micros = median_time(library, call, seconds) * 1e6
    if library.rank == 0:
        print(f"{what},{ranks},{count * 4 * (ranks if blocks else 1)},{micros:.4f}", flush=True)


def rank_main(rank, ranks, port, gate, table, what, sizes, seconds, limit):
    signal.alarm(limit)
    cores = sorted(os.sched_getaffinity(0))
    if ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    library = Library(rank, ranks, gate, table)
    for size in sizes:
        measure(library, what, size, seconds)
    gate.wait()
    # Tearing groups down hangs now and then; there is nothing left to do.
    os._exit(0)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    ranks, what, sizes, milliseconds, limit = sys.argv[1:]
    ranks, limit = int(ranks), int(limit)
    sizes = [int(size) for size in sizes.split(",")]
    signal.alarm(limit)
    context = multiprocessing.get_context("fork")
    gate, table = context.Barrier(ranks), context.RawArray("d", ranks * SAMPLES_MAX)
    common = (ranks, free_port(), gate, table, what, sizes, float(milliseconds) / 1e3, limit)
    children = [context.Process(target=rank_main, args=(rank, *common)) for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(abs(child.exitcode) for child in children))


if __name__ == "__main__":
    main()
