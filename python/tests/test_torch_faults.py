"""What the other ranks of a group of torch see of a rank that dies, is silent, or differs."""

import functools
import os
import signal
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from unisono.errors import Timeout  # noqa: E402
from unisono.torch._versions import HAS_BACKENDS  # noqa: E402

from faults import GROUP_TIMEOUT, SIZE, VICTIM, strike, until_others_ended  # noqa: E402

SMALL, LARGE = 4, 1 << 24


def forever(rank):
    time.sleep(1000)


def all_reduce_small(rank):
    dist.all_reduce(torch.ones(SMALL))


def all_reduce_large(rank):
    dist.all_reduce(torch.ones(LARGE))


def all_reduce_again_and_again(rank):
    values = torch.ones(LARGE)
    while True:
        dist.all_reduce(values, dist.ReduceOp.MAX)


def wait_for_async(rank):
    works = [dist.all_reduce(torch.ones(length), async_op=True) for length in (SMALL, LARGE)]
    for work in works:
        work.wait()


def wait_for_future(rank):
    dist.all_reduce(torch.ones(SMALL), async_op=True).get_future().wait()


def receive_from_victim(rank):
    dist.irecv(torch.ones(SMALL), VICTIM).wait()


def send_to_victim(rank):
    dist.isend(torch.ones(LARGE), VICTIM).wait()


def exchange_with_victim(rank):
    output = torch.ones(LARGE)
    exchanges = [dist.P2POp(dist.isend, torch.ones(LARGE), VICTIM), dist.P2POp(dist.irecv, output, VICTIM)]
    for work in dist.batch_isend_irecv(exchanges):
        work.wait()


def broadcast_of_victim(rank):
    dist.broadcast(torch.ones(LARGE), VICTIM)


def barrier(rank):
    dist.barrier()


@pytest.mark.parametrize(
    "body,of_victim",
    [
        (all_reduce_small, forever),
        (all_reduce_large, forever),
        (all_reduce_again_and_again, all_reduce_again_and_again),
        (wait_for_async, forever),
        (wait_for_future, forever),
        (receive_from_victim, forever),
        (send_to_victim, forever),
        (exchange_with_victim, forever),
        (broadcast_of_victim, forever),
        (barrier, forever),
    ],
    ids=lambda body: body.__name__,
)
def test_death_of_a_rank_is_an_error_on_all_others(body, of_victim):
    for one in strike(body, of_victim, signal.SIGKILL):
        assert one.kind == "PeerFailed" and f"rank {VICTIM} is gone" in one.text and f"rank {one.rank} " in one.text, one


def with_workers(rank):
    """Dies while it has workers of a DataLoader, which were forked after the group was made."""
    data = torch.utils.data.TensorDataset(torch.arange(64.0))
    loader = iter(torch.utils.data.DataLoader(data, batch_size=4, num_workers=2))
    next(loader)
    forever(rank)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_workers_that_outlive_a_rank_do_not_hide_its_death(transport, monkeypatch):
    monkeypatch.setenv("UNISONO_TRANSPORT", transport)
    seen = strike(all_reduce_small, with_workers, signal.SIGKILL)
    assert all(one.kind == "PeerFailed" and f"rank {VICTIM} is gone" in one.text for one in seen), seen


@pytest.mark.parametrize("blow", [None, signal.SIGSTOP], ids=["sleeps", "is stopped"])
@pytest.mark.parametrize("body", [all_reduce_small, all_reduce_large, wait_for_async, receive_from_victim])
def test_silent_rank_is_named_at_the_timeout_of_the_group(body, blow):
    seen = strike(body, forever if blow else until_others_ended, blow, timeout=1)
    for one in seen:
        if one.rank != VICTIM:
            # A rank that waits for waiting ranks gets a quarter more, or hears from those that fail.
            assert 0.3 < one.seconds < 60 and one.kind in ("Timeout", "MessageTimeout", "Aborted"), one
            assert f"rank {VICTIM}" in one.text, one
    assert any("Timeout" in one.kind for one in seen), seen


@pytest.mark.parametrize("how", ["options", "set_timeout"])
@pytest.mark.parametrize("is_async", [False, True], ids=["waits at once", "async"])
def test_timeout_of_a_call_ends_it_and_names_the_silent_rank(how, is_async):
    def call_briefly(rank):
        options = dist.AllreduceOptions()
        if hasattr(options, "asyncOp"):
            options.asyncOp = is_async
        if how == "options":
            options.timeout = timedelta(milliseconds=300)
        elif HAS_BACKENDS:
            dist.distributed_c10d._set_pg_timeout(timedelta(milliseconds=300), dist.group.WORLD)
        else:  # That function of older versions knows the backends of torch alone.
            dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(timedelta(milliseconds=300))
        if rank == VICTIM:
            forever(rank)
        dist.group.WORLD.allreduce([torch.ones(SMALL)], options).wait()

    seen = [one for one in strike(call_briefly, call_briefly, signal.SIGSTOP) if one.rank != VICTIM]
    assert any(one.kind == "Timeout" for one in seen), seen
    for one in seen:
        assert one.kind in ("Timeout", "Aborted") and f"rank {VICTIM}" in one.text, one
        assert one.seconds < GROUP_TIMEOUT, one


def test_timeout_of_a_call_leaves_other_calls_alone(processes):
    def body(rank, size):
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=3)
        dist.group.WORLD.allreduce([values := torch.ones(SMALL)], options).wait()
        if rank == 1:
            time.sleep(4)
        dist.all_reduce(values)
        assert (values == size * size).all()

    processes(2, body)


def test_shorter_timeout_of_the_group_ends_the_wait_for_a_message(processes):
    def body(rank, size):
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["waited"])
            return dist.send(torch.full((SMALL,), 7.0), 0)
        dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(timedelta(milliseconds=300))
        work = dist.irecv(received := torch.zeros(SMALL), 1)
        with pytest.raises(Timeout, match="rank 0 in recv waits for rank 1; it timed out"):
            work.wait()
        # The message is still under way, and the group goes on.
        store.set("waited", "1")
        work.wait(timedelta(seconds=20))
        assert (received == 7).all()

    processes(2, body)


def test_timeout_of_a_wait_names_the_silent_rank():
    def wait_briefly(rank):
        work = dist.all_reduce(torch.ones(SMALL), async_op=True)
        work.wait(timedelta(milliseconds=300))

    seen = [one for one in strike(wait_briefly, forever, signal.SIGSTOP) if one.rank != VICTIM]
    for one in seen:
        assert one.kind == "Timeout" and one.seconds < GROUP_TIMEOUT, one
    assert any(f"rank {VICTIM}" in one.text for one in seen), seen


BUFFER = torch.ones((1 << 22) + 1)
CALLS = {
    "shape": lambda rank: dist.all_reduce(torch.ones(SMALL + (rank == VICTIM))),
    "large shape": lambda rank: dist.all_reduce(BUFFER[: (1 << 22) + (rank == VICTIM)]),
    "type": lambda rank: dist.all_reduce(torch.ones(SMALL).to(torch.int32 if rank == VICTIM else torch.float32)),
    "reduction": lambda rank: dist.all_reduce(
        torch.ones(SMALL), dist.ReduceOp.MAX if rank == VICTIM else dist.ReduceOp.SUM
    ),
    "collective": lambda rank: (
        dist.broadcast(torch.ones(SMALL), 0) if rank == VICTIM else dist.all_reduce(torch.ones(SMALL))
    ),
    "async": lambda rank: dist.all_reduce(torch.ones(SMALL + (rank == VICTIM)), async_op=True).wait(),
}


@pytest.mark.parametrize("what", CALLS)
def test_rank_that_differs_is_named(what):
    seen = strike(CALLS[what], CALLS[what])
    assert len(seen) == SIZE and all(one.kind == "Mismatch" for one in seen), seen
    for one in seen:
        assert f"rank {VICTIM} called" in one.text, one


def test_four_threads_use_four_groups_at_once(processes):
    def body(rank, size):
        groups = [dist.new_group() for _ in range(4)]
        wrong = []

        def use(number, group):
            for step in range(100):
                values = torch.full((1 + step * 97,), float(rank + number))
                dist.all_reduce(values, group=group)
                if not (values == sum(range(size)) + size * number).all():
                    wrong.append((number, step))
                work = dist.all_reduce(values, dist.ReduceOp.MAX, group=group, async_op=True)
                work.wait()

        threads = [threading.Thread(target=use, args=one) for one in enumerate(groups)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
        assert not any(thread.is_alive() for thread in threads) and not wrong, wrong

    processes(4, body)


def test_64_groups_work_one_after_the_other_and_together(processes):
    def body(rank, size):
        groups = [dist.new_group() for _ in range(64)]
        for number, group in enumerate(groups):
            dist.all_reduce(values := torch.full((5,), float(rank + number)), group=group)
            assert (values == sum(range(size)) + size * number).all(), (number, values)
        tensors = [torch.full((1000,), float(rank * number)) for number in range(64)]
        works = [dist.all_reduce(*one, async_op=True) for one in zip(tensors, [dist.ReduceOp.SUM] * 64, groups)]
        for number, (work, values) in enumerate(zip(works, tensors)):
            work.wait()
            assert (values == sum(range(size)) * number).all(), (number, values)

    processes(4, body)


def test_ranks_that_are_threads_have_workers_of_data_loaders():
    from unisono.torch._register import create

    import numpy.random  # noqa: F401 - a child of a thread would wait for another thread's import

    store, size, results, failures = dist.HashStore(), 4, {}, []
    data = torch.utils.data.TensorDataset(torch.arange(32.0))

    def use(rank):
        common = SimpleNamespace(
            store=store, group_rank=rank, group_size=size, timeout=timedelta(seconds=20), group_id="threads"
        )
        try:
            group = create(common, None)
            total = torch.zeros(1)
            for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=1):
                group.allreduce([batch], dist.AllreduceOptions()).wait()
                total += batch.sum()
            results[rank] = total.item()
        except BaseException as error:
            failures.append((rank, error))

    threads = [threading.Thread(target=use, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not failures and results == dict.fromkeys(range(size), size * sum(range(32)) * 1.0), (failures, results)


def test_worker_of_a_data_loader_that_calls_the_group_gets_an_error(processes):
    class Calling(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, _):
            try:
                dist.all_reduce(torch.ones(3))
            except RuntimeError as error:
                return float("forked" in str(error))
            return 2.0

    def body(rank, size):
        for batch in torch.utils.data.DataLoader(Calling(), num_workers=1):
            assert batch.item() == 1
        dist.barrier()

    processes(2, body)
