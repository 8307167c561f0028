"""Calls whose arguments differ between ranks, and arguments that are refused."""

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from unisono import errors  # noqa: E402
from unisono.torch._versions import HAS_BACKENDS  # noqa: E402


@pytest.mark.parametrize("is_async", [False, True])
def test_splits_on_one_rank_alone_are_legal(processes, is_async):
    def body(rank, size):
        for rows in (1, 300_000):
            for who in ([0], [1], [0, 2], [0, 1, 2], []):
                splits = [rows] * size if rank in who else None
                output, sent = torch.zeros(rows * size, 2), torch.arange(2.0 * rows * size).view(-1, 2) + rank
                work = dist.all_to_all_single(output, sent, splits, None, async_op=is_async)
                work is None or work.wait()
                work = dist.all_to_all_single(output, output.clone(), None, splits, async_op=is_async)
                work is None or work.wait()
                # What went there and came back is what was sent.
                assert torch.equal(output, sent), (rows, who)

    processes(3, body)


def test_empty_and_uneven_splits_meet_calls_without_splits(processes):
    def body(rank, size):
        dist.all_to_all_single(torch.zeros(0), torch.zeros(0), None, None if rank else [0, 0])
        counts = [[0, 3], [0, 0]]  # Rows from each rank to each other one.
        sends, receives = counts[rank], [row[rank] for row in counts]
        output = torch.zeros(sum(receives))
        # Rank 1 sends nothing, and need not say so.
        dist.all_to_all_single(output, torch.ones(sum(sends)), receives, sends if rank == 0 else None)
        assert output.tolist() == [1.0] * sum(receives)

    processes(2, body)


def variants(values):
    """Returns tensors with the same elements in memory of every kind."""
    wide = torch.zeros(*values.shape, 2, dtype=values.dtype)
    wide[..., 0] = values
    padded = torch.zeros(values.shape[0] + 3, dtype=values.dtype)
    padded[2:-1] = values
    return {"plain": values.clone(), "strided": wide[..., 0], "offset": padded[2:-1]}


@pytest.mark.parametrize("count", [6, 200_000])
@pytest.mark.parametrize("kind", ["strided", "offset"])
def test_memory_of_one_rank_does_not_choose_the_operation(processes, kind, count):
    """Rank 1 has memory that is copied, where the others have memory that is used as it is."""

    def body(rank, size):
        def tensor(value, length=count):
            made = variants(torch.full((length,), float(value)))
            return made[kind if rank == 1 else "plain"]

        total = sum(range(1, size + 1))
        dist.all_reduce(values := tensor(rank + 1))
        assert (values == total).all()
        dist.reduce(values := tensor(rank + 1), 2)
        assert rank != 2 or (values == total).all()
        dist.broadcast(values := tensor(rank), 1)
        assert (values == 1).all()
        dist.all_gather(outputs := [tensor(-1) for _ in range(size)], tensor(rank))
        assert all((output == peer).all() for peer, output in enumerate(outputs))
        dist.all_gather_into_tensor(output := tensor(-1, size * count), tensor(rank))
        assert all((part == peer).all() for peer, part in enumerate(output.chunk(size)))
        outputs = [tensor(-1) for _ in range(size)] if rank == 1 else None
        dist.gather(tensor(rank), outputs, 1)
        assert rank != 1 or all((output == peer).all() for peer, output in enumerate(outputs))
        dist.scatter(output := tensor(-1), [tensor(peer) for peer in range(size)] if rank == 1 else None, 1)
        assert (output == rank).all()
        dist.reduce_scatter(output := tensor(-1), [tensor(peer) for peer in range(size)])
        assert (output == rank * size).all()
        dist.reduce_scatter_tensor(output := tensor(-1), torch.cat([tensor(peer) for peer in range(size)]))
        assert (output == rank * size).all()
        dist.all_to_all(outputs := [tensor(-1) for _ in range(size)], [tensor(rank) for _ in range(size)])
        assert all((output == peer).all() for peer, output in enumerate(outputs))

    processes(3, body)


def test_list_that_shares_memory_on_one_rank_is_filled_in_order(processes):
    def body(rank, size):
        for count in (4, 400_000):  # The lists of the second are long enough to travel without a copy.
            outputs = [torch.zeros(count) for _ in range(size)]
            if rank == 1:
                outputs[1] = outputs[0]
            dist.all_gather(outputs, torch.full((count,), float(rank)))
            assert [output[0].item() for output in outputs] == ([1, 1, 2] if rank == 1 else [0, 1, 2])
            outputs = [torch.zeros(count)] * size if rank == 1 else None
            dist.gather(torch.full((count,), float(rank)), outputs, 1)
            assert rank != 1 or (outputs[0] == 2).all()
            shared = torch.zeros(count + 2)
            outputs = [shared[:count], shared[1 : count + 1], torch.zeros(count)]
            outputs = outputs if rank == 1 else [torch.zeros(count) for _ in range(size)]
            dist.all_to_all(outputs, [torch.ones(count)] * size)
            assert rank != 1 or shared.tolist()[-2:] == [1, 0]

    processes(3, body)


REFUSED = {
    "broadcast: the root is -1, where ranks are 0 to 1": lambda: dist.broadcast(torch.ones(4), group_src=-1),
    "broadcast: the root is 2": lambda: dist.broadcast(torch.ones(4), group_src=2),
    "reduce: the root is -1": lambda: dist.reduce(torch.ones(4), group_dst=-1),
    "gather: the root is -1": lambda: dist.gather(torch.ones(4), None, group_dst=-1),
    "scatter: the root is -2": lambda: dist.scatter(torch.ones(4), None, group_src=-2),
    "send: the peer is -1": lambda: dist.send(torch.ones(4), group_dst=-1),
    "recv: the peer is -1": lambda: dist.group.WORLD.recv([torch.ones(4)], -1, 0),
    "recv: the peer is 7": lambda: dist.recv(torch.ones(4), group_src=7),
    "all_to_all: the input split of rank 1 is -1": lambda: split([2, 2], [5, -1]),
    "all_to_all: the output split of rank 0 is -4": lambda: split([-4, 8], [2, 2]),
    "all_to_all: there are 1 input splits for 2 ranks": lambda: split([2, 2], [4]),
    "all_to_all: the output splits add up to 3, but it has 4 rows": lambda: split([1, 2], [2, 2]),
    "all_to_all: the input has 3 rows, which do not divide by 2": lambda: split(None, None, 3),
}


def split(output_splits, input_splits, rows=4):
    dist.all_to_all_single(torch.zeros(4), torch.ones(rows), output_splits, input_splits)


def test_numbers_out_of_range_are_refused_before_anything_is_sent(processes):
    def body(rank, size):
        for text, call in REFUSED.items():
            with pytest.raises(errors.InvalidUsage, match=f"rank {rank} in {text}.*nothing was sent"):
                call()
        dist.all_reduce(values := torch.ones(3))
        assert (values == size).all()

    processes(2, body)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("one,other", [("float16", "bfloat16"), ("float32", "float64"), ("float8_e4m3fn", "bool")])
def test_types_in_errors_have_the_names_of_torch(processes, one, other, is_async):
    def body(rank, size):
        values = torch.ones(4).to(getattr(torch, other if rank else one))
        with pytest.raises(errors.Mismatch) as told:
            dist.all_reduce(values, dist.ReduceOp.MAX, async_op=is_async).wait() if is_async else dist.all_reduce(
                values, dist.ReduceOp.MAX
            )
        for name in (one, other):
            assert f"4 x torch.{name}, max" in str(told.value), told.value
        assert "torch.torch" not in str(told.value) and f"torch.{other if rank else one}" in told.value.operation

    processes(2, body)


def test_undefined_reduction_names_the_type_of_torch(processes):
    def body(rank, size):
        for dtype in (torch.float16, torch.float32, torch.float64):
            work = dist.group.WORLD.allreduce([torch.ones(2, dtype=dtype)], dist.ReduceOp.BAND)
            with pytest.raises(errors.InvalidUsage, match=f"bitand is not defined for {dtype}, which"):
                work.wait()
            assert str(dtype) in str(work.exception())

    processes(2, body)


def test_all_to_all_of_two_types_is_refused(processes):
    def body(rank, size):
        values = torch.ones(4, dtype=torch.float32 if rank else torch.int32)
        with pytest.raises(errors.Mismatch, match="torch.int32.*torch.float32|torch.float32.*torch.int32"):
            dist.all_to_all_single(torch.zeros_like(values), values)

    processes(2, body)


def test_backend_uses_the_values_of_conjugate_and_negative_views(processes):
    """torch's dispatcher resolves such views before most calls, but not before those of the backend itself."""

    def body(rank, size):
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        for kind in range(4):
            value = torch.tensor([complex(rank + 1, 2)])
            view = [value.conj(), torch._neg_view(-value), torch._neg_view(-value.real), value.conj().imag][kind]
            shown = view.resolve_conj().resolve_neg().clone()
            outputs = [torch.zeros_like(shown) for _ in range(size)]
            backend.allgather([outputs], [view]).wait()
            assert torch.equal(outputs[rank], shown), (outputs, view)
            backend.allreduce([view], dist.AllreduceOptions()).wait()
            assert torch.equal(view.resolve_conj().resolve_neg(), sum(outputs)), (view, outputs)

    processes(2, body)


SPARSE = {
    "size": lambda rank: torch.ones(4 + (rank == 1)).to_sparse(),
    "dimensions": lambda rank: torch.ones(*[4] * (1 + (rank == 1))).to_sparse(1),
    "sparse dimensions": lambda rank: torch.ones(4, 4).to_sparse(1 + (rank == 1)),
    "dense size": lambda rank: torch.ones(4, 4 + (rank == 1)).to_sparse(1),
    "type": lambda rank: torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32).to_sparse(),
    "type of the same length": lambda rank: torch.ones(4).to(torch.int32 if rank == 1 else torch.float32).to_sparse(),
    "no entries": lambda rank: torch.zeros(4 + (rank == 1)).to_sparse(),
}


@pytest.mark.parametrize("what", SPARSE)
def test_sparse_tensors_that_differ_are_an_error_on_all_ranks(processes, what):
    def body(rank, size):
        tensor = SPARSE[what](rank)
        before = tensor.to_dense()
        with pytest.raises(errors.InvalidUsage, match=f"rank {rank} in sparse all_reduce: rank 1 sent a tensor of"):
            dist.all_reduce(tensor)
        assert torch.equal(tensor.to_dense(), before)
        # The group goes on.
        dist.all_reduce(tensor := torch.ones(5).to_sparse())
        assert tensor.to_dense().tolist() == [size] * 5

    processes(3, body)


def test_sparse_tensors_of_other_numbers_of_entries_are_summed(processes):
    def body(rank, size):
        for entries in ([0, 1, 2], [3, 0, 0], [0, 0, 0], [2, 2, 1]):
            places = torch.arange(entries[rank])[None]
            tensor = torch.sparse_coo_tensor(places, torch.ones(entries[rank]) * (rank + 1), (4,))
            dist.all_reduce(tensor)
            expected = [sum(peer + 1.0 for peer in range(size) if entries[peer] > place) for place in range(4)]
            assert tensor.to_dense().tolist() == expected, entries

    processes(3, body)


@pytest.mark.parametrize("backend", ["unisono", "cpu:unisono,cuda:gloo"])
def test_receive_of_any_source_tells_it_in_every_group(processes, backend):
    if backend != "unisono" and not HAS_BACKENDS:
        pytest.skip("this version of torch takes a Python backend only for the whole group")

    def body(rank, size):
        groups = [dist.group.WORLD, dist.new_group(), dist.new_group([2, 1])]
        for group in groups[: 3 if rank else 2]:
            if rank == 1:
                sources = [dist.recv(values := torch.zeros(2), group=group) for _ in range(group.size() - 1)]
                assert sorted(sources) == ([0, 2] if group.size() == 3 else [2]) and (values >= 0).all()
                work = dist.irecv(values := torch.zeros(2), group=group, tag=5)
                work.wait()
                # The number of the rank in the group.
                assert work._source_rank() == dist.get_group_rank(group, 2) and values.tolist() == [7, 7]
            else:
                dist.send(torch.full((2,), float(rank)), 1, group=group)
                if rank == 2:
                    dist.send(torch.full((2,), 7.0), 1, group=group, tag=5)
        dist.barrier()

    processes(3, body, backend)


def test_group_for_another_device_than_the_cpu_is_refused(processes):
    def body(rank, size):
        dist.destroy_process_group()
        with pytest.raises(errors.Unsupported, match="`cuda:unisono` is not possible.*give `cpu:unisono,cuda:`"):
            dist.init_process_group("cpu:gloo,cuda:unisono", store=dist.HashStore(), rank=0, world_size=1)

    processes(1, body)


def test_expanded_tensors_are_inputs_but_receive_nothing(processes):
    def expanded(value):
        return torch.full((3, 1), float(value)).expand(3, 2)

    def body(rank, size):
        dist.broadcast(expanded(7) if rank == 1 else (values := torch.zeros(3, 2)), 1)
        assert rank == 1 or (values == 7).all()
        dist.reduce(expanded(5) if rank == 1 else (values := torch.ones(3, 2)), 0)
        assert rank == 1 or (values == 6).all()
        dist.all_gather(outputs := [torch.zeros(3, 2) for _ in range(size)], expanded(rank))
        assert all((output == peer).all() for peer, output in enumerate(outputs))
        for name, call in {
            "all_reduce": lambda: dist.all_reduce(expanded(1)),
            "broadcast": lambda: dist.broadcast(expanded(1), 1 - rank),
            "all_gather": lambda: dist.all_gather([expanded(0), torch.zeros(3, 2)], torch.ones(3, 2)),
            "recv": lambda: dist.recv(expanded(1), 1 - rank),
            "all_to_all": lambda: dist.all_to_all([expanded(1), torch.zeros(3, 2)], [torch.zeros(3, 2)] * 2),
        }.items():
            with pytest.raises(errors.InvalidUsage, match=f"rank {rank} in {name}: .* share memory.*nothing was sent"):
                call()
        dist.barrier()

    processes(2, body)


def test_views_whose_results_torch_would_lose_are_refused(processes):
    def body(rank, size):
        view = torch._neg_view(torch.ones(2))
        for call in (
            lambda: dist.all_reduce(view), lambda: dist.broadcast(view, 0), lambda: dist.recv(view, 1 - rank),
            lambda: dist.scatter(view, None, 1 - rank),
            lambda: dist.all_gather_into_tensor(torch._neg_view(torch.ones(4)), torch.ones(2)),
            lambda: dist.all_to_all_single(view, torch.ones(2)),
            lambda: dist.reduce(torch.ones(2).to(torch.cfloat).conj(), 0),
        ):  # fmt: skip
            with pytest.raises(errors.InvalidUsage, match=f"rank {rank} in .* view, .* lost; pass tensor.resolve_"):
                call()
        dist.all_gather(outputs := [torch._neg_view(torch.zeros(2)) for _ in range(size)], view)
        assert all((output == -1).all() for output in outputs)

    processes(2, body)
