"""Helpers: ranks as threads, and ranks as forked processes."""

import multiprocessing
import os
import tempfile
import threading
import traceback

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
LIMIT = float(os.environ.get("UNISONO_EXT_TEST_LIMIT_S", 60))


@pytest.fixture
def threads():
    """Runs a function with the communicator of each rank, on threads of this process."""
    import unisono

    def run(size, body, **settings):
        results, errors = [None] * size, []

        def of_rank(comm):
            try:
                results[comm.rank] = body(comm)
            except BaseException:
                errors.append(traceback.format_exc())
                comm.abort("a test failed")

        ranks = unisono.Communicator.local(size, timeout_ms=20000, **settings)
        started = [threading.Thread(target=of_rank, args=(comm,)) for comm in ranks]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(LIMIT)
        assert not any(thread.is_alive() for thread in started), "a rank hangs"
        assert not errors, "\n".join(errors)
        return results

    return run


@pytest.fixture
def processes():
    """Runs a function in a process for each rank, inside a group of torch."""
    return run_processes


def run_processes(size, body, backend="unisono", timeout=20, limit=LIMIT):
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.SimpleQueue()
        arguments = (size, body, backend, f"{folder}/store", queue, timeout)
        started = [context.Process(target=_of_rank, args=(rank, *arguments)) for rank in range(size)]
        for process in started:
            process.start()
        for process in started:
            process.join(limit)
        hanging = [process.pid for process in started if process.is_alive()]
        for process in started:
            process.kill()
        failures = []
        while not queue.empty():
            failures.append(queue.get())
    assert not hanging, f"ranks hang: {hanging}\n" + "\n".join(failures)
    assert not failures, "\n".join(failures)
    assert all(process.exitcode == 0 for process in started), [process.exitcode for process in started]


def _of_rank(rank, size, body, backend, path, queue, timeout):
    from datetime import timedelta

    import torch.distributed as dist

    import unisono.torch  # noqa: F401 - versions of torch that look for no backends need it

    try:
        limit = timedelta(seconds=timeout)
        dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=size, timeout=limit)
        body(rank, size)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        queue.put(f"rank {rank}: {traceback.format_exc()}")
        raise
