"""Prints what an idle group of torch costs: memory, threads and file descriptors, beside Gloo.

    python benches/group_memory.py [--groups 64] [--ranks 4]

Every rank measures itself before and after it makes the groups, and after it has used each once. PSS
counts a page that several processes share in parts, so that the sum over the ranks is the memory of the
host. The table has the mean over the ranks, for one group in one process.
"""

import argparse
import multiprocessing
import os
import tempfile
from datetime import timedelta

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

MEASURES = ["PSS (KiB)", "RSS (KiB)", "threads", "descriptors"]


def usage():
    """Returns this process's PSS and RSS in KiB, its threads and its open descriptors."""
    with open("/proc/self/smaps_rollup") as file:
        sizes = {line.split()[0]: int(line.split()[1]) for line in file if line.split()[0] in ("Pss:", "Rss:")}
    return [sizes["Pss:"], sizes["Rss:"], len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))]


def measure(barrier):
    """Measures while all ranks are idle."""
    barrier.wait()
    found = usage()
    barrier.wait()
    return found


def rank_of_group(rank, backend, path, options, barrier, queue):
    dist.init_process_group(
        backend, init_method=f"file://{path}", rank=rank, world_size=options.ranks, timeout=timedelta(seconds=60)
    )
    dist.all_reduce(values := torch.ones(1000))
    before = measure(barrier)
    groups = [dist.new_group() for _ in range(options.groups)]
    made = measure(barrier)
    for group in groups:
        dist.all_reduce(values, group=group)
    used = measure(barrier)
    queue.put((before, made, used))
    barrier.wait()
    dist.destroy_process_group()


def run(backend, options):
    """Returns the means over the ranks: before, with idle groups, with groups that were used."""
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(options.ranks), context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (backend, f"{folder}/store", options, barrier, queue)
        ranks = [context.Process(target=rank_of_group, args=(rank, *arguments)) for rank in range(options.ranks)]
        for process in ranks:
            process.start()
        found = [queue.get() for _ in ranks]
        for process in ranks:
            process.join()
    mean = lambda stage, index: sum(one[stage][index] for one in found) / len(found)  # noqa: E731
    return [[mean(stage, index) for index in range(len(MEASURES))] for stage in range(3)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    print(f"{options.groups} groups of {options.ranks} ranks on one host, torch {torch.__version__}")
    print(f"| each process has | {' | '.join(MEASURES)} |\n|---|{'--:|' * len(MEASURES)}")
    for backend in ("unisono", "gloo"):
        before, made, used = run(backend, options)
        print(f"| {backend}, one group | {' | '.join(f'{value:,.0f}' for value in before)} |")
        for title, after in (("idle", made), ("used once", used)):
            each = [(new - old) / options.groups for new, old in zip(after, before)]
            print(f"| {backend}, each further group, {title} | {' | '.join(f'{value:,.1f}' for value in each)} |")


if __name__ == "__main__":
    main()
