"""Groups that are made of other groups: split, merged, shrunk and reconfigured, and operations as one."""

import json
import signal
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from unisono.errors import InvalidUsage, Mismatch  # noqa: E402
from unisono.torch._versions import HAS_BACKENDS  # noqa: E402

SHRINK_ABORT = 1
pytestmark = pytest.mark.skipif(not HAS_BACKENDS, reason="no Python class can be a backend in this version of torch")


def summed(value, group=None):
    tensor = torch.full((3,), float(value))
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


@pytest.mark.parametrize("backend", ["gloo", "unisono"])
def test_split_group_keeps_order_and_leaves_others_out(processes, backend):
    def body(rank, size):
        part = dist.split_group(split_ranks=[[2, 0], [1]])
        if rank == 3:
            assert part is dist.GroupMember.NON_GROUP_MEMBER
        else:
            assert dist.get_rank(part) == {2: 0, 0: 1, 1: 0}[rank]
            assert dist.get_process_group_ranks(part) == ([1] if rank == 1 else [2, 0])
            assert summed(rank + 1, part) == (2 if rank == 1 else 4)
            tensor = torch.full((2,), float(rank))
            dist.broadcast(tensor, group=part, group_src=0)
            assert tensor[0] == (1 if rank == 1 else 2)
            work = dist.all_reduce(torch.ones(2), group=part, async_op=True)
            work.wait()
            assert work.is_completed()
            assert dist.get_backend(part) == backend
        assert summed(1) == size
        if backend == "unisono":
            whole = dist.split_group(split_ranks=[[3, 2, 1, 0]], timeout=timedelta(seconds=7))
            assert dist.get_rank(whole) == 3 - rank and whole._unisono._comm.timeout == 7
            half = dist.split_group(parent_pg=whole, split_ranks=[[0, 1], [2, 3]])
            assert summed(rank, half) == (5 if rank >= 2 else 1)

    processes(4, body, backend)


@pytest.mark.parametrize("parts", [[[0, 0], [1]], [[0, 5], [1]], [[]]])
def test_split_group_refuses_ranks_that_make_no_part(processes, parts):
    def body(rank, size):
        with pytest.raises((InvalidUsage, ValueError), match="ranks|empty"):
            dist.group.WORLD.split_group(parts[0])
        assert summed(1) == size

    processes(2, body)


def test_split_group_with_other_orders_is_a_mismatch(processes):
    def body(rank, size):
        with pytest.raises(Mismatch, match=r"rank \d in split: .*\[0, 1.*give the same parts"):
            dist.group.WORLD.split_group([0, 1] if rank == 0 else [0, 1, 2])
        assert summed(1) == size

    processes(3, body)




def train(rank):
    """Takes steps with DistributedDataParallel, whose C++ looks at the type of the group."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    for _ in range(3):
        model(torch.full((1, 2), float(rank))).sum().backward()
    assert (model.module.weight.grad != 0).all()


@pytest.mark.parametrize("flags", [0, SHRINK_ABORT])
def test_shrink_group_goes_on_without_a_rank_that_lives(processes, flags):
    def body(rank, size):
        half = dist.new_group([1, 2, 3])
        if rank == 1:
            return time.sleep(3)
        if flags == SHRINK_ABORT:
            stuck = dist.all_reduce(torch.ones(4), async_op=True)
        group = dist.shrink_group([1], shrink_flags=flags)
        if flags == SHRINK_ABORT:
            with pytest.raises(RuntimeError, match="abort"):
                stuck.wait()
        assert dist.group.WORLD is group and half not in dist.distributed_c10d._world.pg_map
        assert (dist.get_rank(), dist.get_world_size()) == ({0: 0, 2: 1, 3: 2}[rank], 3)
        assert summed(rank) == 5
        if flags == 0:
            train(rank)
        if rank != 0:
            dist.shrink_group([0])
            assert summed(rank) == 5 and dist.get_world_size() == 2

    processes(4, body)


def test_shrink_group_after_a_death_takes_the_next_step(processes):
    def body(rank, size):
        assert summed(1) == size
        if rank == 2:
            signal.raise_signal(signal.SIGKILL)
        with pytest.raises(RuntimeError, match="rank 2") as failure:
            while True:
                summed(1)
        dist.shrink_group([failure.value.peer], shrink_flags=SHRINK_ABORT)
        assert summed(rank) == 4 and dist.get_world_size() == 3

    with pytest.raises(AssertionError, match=r"\[0, 0, -9, 0\]"):
        processes(4, body)


def test_shrink_group_with_other_lists_is_a_mismatch(processes):
    def body(rank, size):
        if rank < 3:
            with pytest.raises(Mismatch, match=r"rank 0 calls shrink without the ranks \[3\], rank 1 .*\[2, 3\]"):
                dist.shrink_group([2, 3] if rank == 1 else [3])

    processes(4, body)


def test_rank_that_would_shrink_another_set_fails_alone(processes):
    def body(rank, size):
        if rank == 1:
            with pytest.raises(Mismatch, match=r"rank 1 calls shrink without the ranks \[0\], rank 2 .*\[1\]"):
                dist.shrink_group([0])
        else:
            dist.shrink_group([1])
            assert summed(rank) == 5

    processes(4, body)


def reconfigured(store, number, rank, members, **options):
    """Reconfigures the default group with the handles of the members, in that order."""
    store.set(f"{number}/{rank}", dist._get_reconfigure_handle())
    handles = [store.get(f"{number}/{member}").decode() for member in members]
    return dist._reconfigure(number, handles, **options).wait()


def in_changing_group(body, backend="unisono"):
    """Returns a body that runs in a group with `enable_reconfigure`, with a store beside it."""

    def of_rank(rank, size):
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()  # Gloo's ranks connect one after the other, and none of them may leave before.
        dist.destroy_process_group()
        limit = timedelta(seconds=20)
        dist.init_process_group(
            backend, store=dist.PrefixStore("changing", store), rank=rank, world_size=size, timeout=limit,
            enable_reconfigure=True,
        )  # fmt: skip
        body(rank, size, dist.PrefixStore("handles", store))

    return of_rank


@pytest.mark.parametrize("backend", ["gloo", "unisono"])
def test_reconfigure_shrinks_grows_and_reorders(processes, backend):
    def body(rank, size, store):
        assert dist._supports_reconfigure() and dist.get_rank() == rank
        with pytest.raises(RuntimeError, match="econfigure"):
            dist.all_reduce(torch.ones(2))
        service = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert service.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
        reconfigured(store, 1, rank, [3, 2, 1, 0])
        assert (dist.get_rank(), dist.get_world_size()) == (3 - rank, 4) and summed(rank) == 6
        if rank != 2:
            reconfigured(store, 2, rank, [0, 1, 3], timeout=timedelta(seconds=15))
            assert (dist.get_rank(), dist.get_world_size()) == ([0, 1, 0, 2][rank], 3) and summed(rank) == 4
            work = dist.all_reduce(torch.ones(2), async_op=True)
            work.wait()
            assert work.is_completed()
        reconfigured(store, 3, rank, [2, 0, 1, 3])
        assert summed(rank) == 6 and dist.get_world_size() == 4
        dist.barrier()
        if backend == "unisono":
            dist.monitored_barrier()
            part = dist.group.WORLD.split_group([0, 1] if dist.get_rank() < 2 else [2, 3])
            part.allreduce([total := torch.ones(1)]).wait()
            assert total == 2

    processes(4, in_changing_group(body, backend), backend)


def test_reconfigure_goes_on_after_the_death_of_rank_0(processes):
    def body(rank, size, store):
        reconfigured(store, 1, rank, [1, 0, 2, 3])
        assert summed(1) == size
        if rank == 1:
            signal.raise_signal(signal.SIGKILL)
        with pytest.raises(RuntimeError, match="rank 0"):
            while True:
                summed(1)
        reconfigured(store, 2, rank, [0, 2, 3])
        assert summed(rank) == 5 and dist.get_world_size() == 3

    with pytest.raises(AssertionError, match=r"\[0, -9, 0, 0\]"):
        processes(4, in_changing_group(body))


def test_reconfigure_names_what_differs_and_who_is_missing(processes):
    def body(rank, size, store):
        reconfigured(store, 1, rank, range(size))
        with pytest.raises(Mismatch, match="rank 0 calls reconfigure 2 of 3 ranks.* of 2 ranks.*same call"):
            reconfigured(store, 2, rank, [0, 1] if rank == 1 else [0, 1, 2])
        with pytest.raises(InvalidUsage, match=f"rank {rank} in reconfigure: 0 of 1 handles are this rank's"):
            dist._reconfigure(3, ["gloo:0:-1:0:"])
        with pytest.raises(InvalidUsage, match=f"rank {rank} in reconfigure: the uuid 2 was already used"):
            reconfigured(store, 2, rank, range(size))
        if rank != 2:
            with pytest.raises(RuntimeError, match="rank 2 has not come to reconfigure 4"):
                store.set("4/2", "unisono|127.0.0.1|9|0")
                # Rank 1 must reach rank 0 within the same time, also on a machine whose cores are busy.
                reconfigured(store, 4, rank, range(size), timeout=timedelta(seconds=8))
        # The group stays as it was, and the handles of the failed call may be used again.
        assert summed(rank) == 3
        reconfigured(store, 5, rank, range(size))
        assert summed(rank) == 3

    processes(3, in_changing_group(body))


def test_new_group_of_a_bound_group_is_split_from_it(processes):
    def body(rank, size):
        store = dist.distributed_c10d._get_default_store()
        dist.destroy_process_group()
        bound = torch.device("cpu", 0)
        store = dist.PrefixStore("bound", store)
        dist.init_process_group("unisono", store=store, rank=rank, world_size=size, device_id=bound)
        assert dist.group.WORLD.bound_device_id == bound
        odd, even = dist.new_group([1, 3]), dist.new_group([2, 0])
        assert summed(rank, odd if rank % 2 else even) == (4 if rank % 2 else 2)
        assert dist.get_rank(even) == (-1 if rank % 2 else rank // 2)
        gloo = dist.new_group(backend="gloo")
        assert summed(rank, gloo) == 6
        # The last one, since torch numbers later groups differently on ranks that are in this one.
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        assert rank > 1 or summed(rank, pair) == 1

    processes(4, body)


def test_merge_of_groups_holds_all_ranks(processes):
    def body(rank, size):
        store = dist.PrefixStore("merge", dist.distributed_c10d._get_default_store())
        half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
        whole = half.merge_remote_group(store, size, timedelta(seconds=20), "whole")
        whole.allreduce([total := torch.ones(1)]).wait()
        assert total == size == whole.size() and whole.group_name == "whole"

    processes(4, body)


def test_group_of_several_backends_is_split(processes):
    def body(rank, size):
        part = dist.split_group(split_ranks=[[1, 0], [2]])
        assert summed(rank, part) == [1, 1, 2][rank] and dist.get_world_size(part) == [2, 2, 1][rank]

    processes(3, body, "cpu:unisono,cuda:gloo")


def test_coalesced_operations_have_one_work(processes):
    def body(rank, size):
        cpu, other = torch.device("cpu"), (rank + 1) % size
        tensors = [torch.full((3,), float(rank + number)) for number in range(3)]
        with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert len(manager.works) == 1
        manager.wait()
        assert [tensor[0] for tensor in tensors] == [1, 3, 5]
        with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
            dist.broadcast(tensors[0].fill_(rank), 1, async_op=True)
            dist.all_to_all_single(tensors[1][:2], torch.tensor([rank, rank + 10.0]), async_op=True)
        (work,) = manager.works
        work.wait(timedelta(seconds=10))
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert tensors[0][0] == 1 and tensors[1][:2].tolist() == [rank * 10, rank * 10 + 1]
        got = torch.empty(4)
        ops = [dist.P2POp(dist.irecv, got, other), dist.P2POp(dist.isend, torch.full((4,), float(rank)), other)]
        (work,) = dist.batch_isend_irecv(ops)
        work.get_future().wait()
        work.wait()
        assert (got == other).all()
        with dist._coalescing_manager(device=cpu):
            pass

    processes(2, body)


def test_batch_with_a_refused_message_leaves_the_group_usable(processes):
    def body(rank, size):
        ops = [dist.P2POp(dist.isend, torch.ones(2), 1 - rank, tag=-1)]
        with pytest.raises(InvalidUsage, match="tag is -1"):
            dist.batch_isend_irecv(ops)
        assert summed(1) == size

    processes(2, body)


@pytest.mark.parametrize("backend", ["gloo", "unisono"])
def test_reconfigure_goes_on_after_abort_timeout_and_rejoin(processes, backend):
    def body(rank, size, store):
        # Every rank alone first, then all.
        dist._reconfigure(10 + rank, {dist._get_reconfigure_handle()}).wait()
        assert dist.get_world_size() == 1
        reconfigured(store, 1, rank, range(size))
        assert summed(rank) == 3
        service = dist.group.WORLD._get_backend(torch.device("cpu"))
        # The other rank may still be on its way out of its sum, which an abort would end with an error.
        store.set(f"summed/{rank}", "")
        store.wait([f"summed/{member}" for member in range(size)])
        service.abort()
        assert service.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
        reconfigured(store, 2, rank, range(size))
        assert summed(rank) == 3
        service.set_timeout(timedelta(milliseconds=50))
        if rank == 1:
            work = dist.all_reduce(torch.ones(4), async_op=True)
            with pytest.raises(RuntimeError, match="[Tt]imed out"):
                work.wait()
        service.set_timeout(timedelta(seconds=30))
        store.set(f"seen/{rank}", "1")
        store.wait([f"seen/{other}" for other in range(size)])
        for number in range(3):
            members = [member for member in range(size) if member != number]
            if rank != number:
                reconfigured(store, 100 + number, rank, members)
                assert summed(rank) == 3 - number
            reconfigured(store, 200 + number, rank, [*members, number])
            assert summed(rank) == 3 and dist.get_rank() == [*members, number].index(rank)

    processes(3, in_changing_group(body, backend), backend)


def test_group_names_what_ended_it(processes):
    def body(rank, size):
        service, kinds = dist.group.WORLD._unisono, torch._C._distributed_c10d.ErrorType
        store = dist.distributed_c10d._get_default_store()
        assert service.get_error() == kinds.SUCCESS
        if rank == 1:
            return store.wait(["seen"])
        service.set_timeout(timedelta(milliseconds=100))
        for async_op in (True, False):
            with pytest.raises(RuntimeError, match="rank 1.*timed out"):
                work = dist.all_reduce(torch.ones(2), async_op=async_op)
                work.wait()
        assert service.get_error() == kinds.TIMEOUT and "timed out" in str(work.exception())
        store.set("seen", "1")

    processes(2, body)


def test_flight_recorder_holds_calls_of_a_group_and_its_parts(processes):
    def body(rank, size):
        part = dist.split_group(split_ranks=[[0, 1]])
        dist.all_reduce(torch.ones(3, 2))
        dist.all_reduce(torch.ones(7), group=part)
        dist.send(torch.ones(5), 1) if rank == 0 else dist.recv(torch.ones(5), 0)
        record = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(backend="unisono"))
        seen = [(call["profiling_name"], call["input_sizes"], call["process_group"][1]) for call in record["entries"]]
        message = ("unisono:send 0->1", [[5]]) if rank == 0 else ("unisono:recv 1<-0", [])
        assert seen == [
            ("unisono:all_reduce", [[3, 2]], "default_pg"),
            ("unisono:all_reduce", [[7]], "default_pg:split:0"),
            (*message, "default_pg"),
        ]

    processes(2, body)


def test_debug_pages_show_this_backend():
    pytest.importorskip("tabulate")
    pytest.importorskip("jinja2")
    from torch.distributed.debug._debug_handlers import default_handlers

    import unisono.torch

    ours = unisono.torch.debug_handlers()
    assert len(ours) == len(default_handlers())
    (pages,) = [one for one in ours if getattr(one, "default_backend", "") == "unisono"]
    assert pages.dump_filename() == "fr_trace"


def test_torchft_connects_the_group_again_after_a_death(processes):
    pytest.importorskip("torchft")

    def body(rank, size):
        from unisono.torch.torchft import ProcessGroupUnisono

        store = dist.distributed_c10d._get_default_store()
        own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set(f"port/{rank}", str(own.port))
        # Rank 1 stays, so its store serves both groups, as that of torchft's first replica does.
        address = f"127.0.0.1:{store.get('port/1').decode()}"
        group = ProcessGroupUnisono(timeout=timedelta(seconds=20))
        group.configure(f"{address}/first", f"replica_{rank}", rank, size, quorum_id=1)
        group.allreduce([total := torch.ones(2)], dist.AllreduceOptions()).wait()
        assert total[0] == size and group.getBackendName() == "torchft-unisono"
        if rank == 2:
            signal.raise_signal(signal.SIGKILL)
        with pytest.raises(RuntimeError, match="rank 2"):
            while True:
                group.allreduce([torch.ones(2)], dist.AllreduceOptions()).wait()
        group.configure(f"{address}/second", f"replica_{rank}", rank, 2, quorum_id=2)
        group.allreduce([total := torch.ones(2)], dist.AllreduceOptions()).wait()
        assert total[0] == 2
        store.set(f"done/{rank}", "1")
        store.wait(["done/0", "done/1"])

    with pytest.raises(AssertionError, match=r"\[0, 0, -9\]"):
        processes(3, body)


def test_shrunk_groups_serve_later_groups_and_messages(processes):
    def body(rank, size):
        store = dist.distributed_c10d._get_default_store()
        part = dist.new_group([1, 2, 3])
        if rank == 1:
            return store.wait(["done/0", "done/2", "done/3"])
        if rank != 0:
            assert summed(rank, dist.shrink_group([0], group=part)) == 5
        dist.shrink_group([1])
        own = dist.get_rank()
        pair = dist.new_group([0, 2])
        assert own == 1 or summed(rank, pair) == 3
        objects = [None] * 3
        dist.all_gather_object(objects, rank)
        assert objects == [0, 2, 3]
        if own == 0:
            dist.send(torch.ones(2), 1)
        elif own == 1:
            dist.recv(torch.ones(2), 0)
        # torch's `split_group` takes the ranks of a shrunk default group for those before.
        half = dist.group.WORLD.split_group([0, 1] if own < 2 else [2])
        half.allreduce([total := torch.ones(1)]).wait()
        assert total == (2 if own < 2 else 1)
        dist.monitored_barrier()
        store.set(f"done/{rank}", "1")

    processes(4, body)


def test_profiler_shows_names_of_the_user_with_shapes(processes):
    if not hasattr(dist, "record_comm"):
        pytest.skip("this version of torch has no record_comm")

    def body(rank, size):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
            with dist.record_comm("gradients"):
                dist.all_reduce(torch.ones(4))
                dist.all_reduce(torch.ones(5), async_op=True).wait()
            dist.all_reduce(torch.ones(6))
        seen = [(event.name, event.input_shapes) for event in profiler.events()]
        assert [shapes for name, shapes in seen if name == "gradients" and shapes] == [[[4]], [[5]]]
        assert [shapes for name, shapes in seen if name.startswith("unisono:")] == [[[6]]]

    processes(2, body)
