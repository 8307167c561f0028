"""The backend of torch.distributed, beyond what torch's own suite looks at."""

import gc
import os
import re
import socket
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from unisono import errors  # noqa: E402
from unisono.torch import _attempt, _connect  # noqa: E402

EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "examples")


# Older versions of torch look for no backends, and need an import.
FINDS_BACKENDS = hasattr(dist.Backend, "_ensure_backend_registered")


def test_torchrun_needs_no_import(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        f"import torch, torch.distributed as dist{', unisono.torch' * (not FINDS_BACKENDS)}\n"
        "dist.init_process_group('unisono')\n"
        "t = torch.ones(3); dist.all_reduce(t); assert t[0] == 4, t\n"
        # One write for each rank, so that those of others do not come between.
        "import os; os.write(1, f'sum {t[0].item()} {dist.get_backend()}\\n'.encode())\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0 and ran.stdout.count("4.0 unisono") == 4, ran.stdout + ran.stderr


def test_every_type_is_reduced(processes):
    def body(rank, size):
        for dtype in [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.float16,
                      torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]:  # fmt: skip
            values = torch.full((3, 5), rank + 1).to(dtype)
            dist.all_reduce(values)
            assert (values == 6).all() and values.dtype == dtype, values
        truth = torch.tensor([rank == 1, False, True])
        dist.all_reduce(truth, dist.ReduceOp.MAX)
        assert truth.tolist() == [True, False, True]
        for op, expected in [(dist.ReduceOp.SUM, [True, False, True]), (dist.ReduceOp.BAND, [False, False, True]),
                             (dist.ReduceOp.BXOR, [True, False, True])]:  # fmt: skip
            truth = torch.tensor([rank == 1, False, True])
            dist.all_reduce(truth, op)
            assert truth.tolist() == expected, op
        options = dist.AllreduceOptions()
        dist.group.WORLD.allreduce([values := torch.full((4,), 1 + 2j) ** rank], options).wait()
        assert torch.allclose(values, sum(torch.full((4,), 1 + 2j) ** power for power in range(3)))
        narrow = torch.full((4,), rank + 1.0).to(torch.float8_e4m3fn)
        dist.all_reduce(narrow)
        assert (narrow.float() == 6).all()

    processes(3, body)


def test_bitwise_reductions_combine_the_operands(processes):
    def body(rank, size):
        for op, expected in [(dist.ReduceOp.BAND, 0), (dist.ReduceOp.BOR, 7), (dist.ReduceOp.BXOR, 7)]:
            values = torch.full((2, 2), 1 << rank)
            dist.all_reduce(values, op)
            assert (values == expected).all(), (op, values)
            share = torch.zeros(2, dtype=torch.int64)
            dist.reduce_scatter_tensor(share, torch.full((2 * size,), 1 << rank), op)
            assert (share == expected).all(), (op, share)
            dist.reduce(values := torch.full((4,), 1 << rank, dtype=torch.int16), 1, op)
            assert rank != 1 or (values == expected).all(), (op, values)

    processes(3, body)


def test_pre_mul_sum_has_the_factor_of_each_rank(processes):
    def body(rank, size):
        if not hasattr(dist, "_make_nccl_premul_sum"):
            return
        values = torch.ones(4)
        dist.all_reduce(values, dist._make_nccl_premul_sum(rank + 0.5))
        assert (values == 2).all()

    processes(2, body)


def test_tensors_that_are_not_contiguous_work(processes):
    def body(rank, size):
        values = torch.zeros(4, 6).t()
        values += rank + 1
        dist.all_reduce(values)
        assert (values == 3).all()
        future = dist.all_reduce(values, async_op=True).get_future()
        assert (future.wait()[0] == 6).all() and (values == 6).all()
        outputs = [torch.zeros(3, 4).t() for _ in range(size)]
        dist.all_gather(outputs, torch.full((4, 3), float(rank)))
        assert all((output == source).all() for source, output in enumerate(outputs))

    processes(2, body)


def test_uneven_lists_are_gathered_and_scattered(processes):
    def body(rank, size):
        outputs = [torch.zeros(source + 1) for source in range(size)]
        dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
        assert [output.tolist() for output in outputs] == [[0.0], [1.0, 1.0], [2.0, 2.0, 2.0]]
        output = torch.zeros(rank + 1)
        dist.reduce_scatter(output, [torch.full((peer + 1,), float(peer)) for peer in range(size)])
        assert output.tolist() == [3.0 * rank] * (rank + 1)
        outputs = [torch.zeros(source + rank) for source in range(size)]
        dist.all_to_all(outputs, [torch.full((peer + rank,), float(rank)) for peer in range(size)])
        assert all((output == source).all() for source, output in enumerate(outputs))
        received = torch.zeros(size * (rank + 1), 2)
        splits = [peer + 1 for peer in range(size)]
        dist.all_to_all_single(received, torch.full((6, 2), float(rank)), [rank + 1] * size, splits)
        assert received[:, 0].tolist() == [float(source) for source in range(size) for _ in range(rank + 1)]

    processes(3, body)


def test_long_lists_arrive_in_their_tensors(processes):
    def body(rank, size):
        count = 300_000  # Lists of so many bytes are not copied together.
        mine = torch.full((count,), float(rank))
        outputs = [torch.zeros(count) for _ in range(size)]
        outputs[rank].fill_(rank)
        dist.all_gather(outputs, outputs[rank])  # The input lies in the output.
        assert all((tensor == peer).all() for peer, tensor in enumerate(outputs))
        gathered = [torch.zeros(count, 2)[:, 0] for _ in range(size)] if rank == 1 else None
        dist.gather(mine, gathered, dst=1)  # Into tensors that are not contiguous.
        assert rank != 1 or all((tensor == peer).all() for peer, tensor in enumerate(gathered))
        share = torch.zeros(count)
        dist.scatter(share, [torch.full((count,), peer + 5.0) for peer in range(size)] if rank == 2 else None, src=2)
        assert (share == rank + 5).all()
        counts = [[0, count, 7], [1, 2, 3], [count, 0, 5]]  # Elements from each rank to each other one.
        inputs = [torch.full((counts[rank][peer],), float(10 * rank + peer)) for peer in range(size)]
        outputs = [torch.zeros(counts[peer][rank]) for peer in range(size)]
        dist.all_to_all(outputs, inputs)
        assert all((tensor == 10 * peer + rank).all() for peer, tensor in enumerate(outputs))

    processes(3, body)


def test_work_tells_its_state(processes):
    def body(rank, size):
        values = torch.ones(5)
        work = dist.all_reduce(values, async_op=True)
        assert work.wait(timedelta(seconds=20)) and work.is_completed() and work.is_success()
        assert work.result()[0] is values and work.exception() is None
        called = []
        work.get_future().then(lambda future: called.append(future.value()[0][0].item())).wait()
        assert called == [size]

    processes(2, body)


def test_failure_of_a_dropped_work_is_told(processes):
    def body(rank, size):
        told = []
        sys.unraisablehook = lambda unraisable: told.append(unraisable.exc_value)
        # The tensor is not contiguous, so the work has something left to do at its end.
        work = dist.all_reduce(torch.ones(3 + rank, 2)[:, 0], async_op=True)
        while not work.is_completed():
            time.sleep(0.001)
        assert not work.is_success() and told == []
        if rank == 1:
            assert isinstance(work.exception(), errors.Mismatch)
        del work
        dist.destroy_process_group()
        gc.collect()
        assert [type(error) for error in told] == [errors.Mismatch] * (rank == 0)

    processes(2, body)


def test_refusal_in_a_dropped_work_is_told(processes):
    def body(rank, size):
        told = []
        sys.unraisablehook = lambda unraisable: told.append(unraisable.exc_value)
        dist.group.WORLD._get_backend(torch.device("cpu"))._comm.close()
        dist.all_reduce(torch.ones(3), async_op=True)
        dist.destroy_process_group()
        gc.collect()
        assert [type(error) for error in told] == [errors.InvalidUsage]

    processes(1, body)


SECRET = "5a" * 32


def relay(port, seen):
    """Starts a relay to a port of this host, which records what it carries, and returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def carry(source, target):
        while data := source.recv(65536):
            seen.append(data)
            target.sendall(data)

    def accept():
        while True:
            near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=carry, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def meet_through_tcp(seen):
    """Makes a group of two ranks, of which rank 1 reaches torch's store through a recorder."""
    wait = timedelta(seconds=20)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait)
    client = dist.TCPStore("127.0.0.1", relay(server.port, seen), is_master=False, timeout=wait)
    ranks = [None, None]

    def join(rank, store):
        ranks[rank] = _connect.connect(dist.PrefixStore("group", store), rank, 2, wait, {"bind_addr": "127.0.0.1"})

    threads = [threading.Thread(target=join, args=ends) for ends in enumerate((server, client))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [comm.rank for comm, _ in ranks] == [0, 1]
    return ranks[0][1].get(_attempt.KEY)


def test_store_of_a_group_with_a_secret_holds_none(monkeypatch):
    monkeypatch.setenv("UNISONO_SECRET", SECRET)
    seen = []
    value = meet_through_tcp(seen)
    traffic = b"".join(seen)
    assert value in traffic, "the recorder does not see the store"
    assert b"#" in value and b"/" not in value
    assert SECRET.encode() not in traffic and bytes.fromhex(SECRET) not in traffic


def test_store_of_a_group_on_loopback_holds_no_secret(monkeypatch, tmp_path):
    for name in ("UNISONO_SECRET", "UNISONO_SECRET_FILE", "UNISONO_ID", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    value = meet_through_tcp([])
    assert value.startswith(b"user 127.0.0.1:") and b"#" in value and b"/" not in value
    key = (tmp_path / f"unisono-{os.geteuid()}" / "key").read_bytes()
    assert len(key) == 64 and key not in value
    # Without a folder for a key, the store is the only place for a secret.
    monkeypatch.setenv("TMPDIR", "/proc/unisono")
    assert b"/" in meet_through_tcp([])


def test_warning_says_what_others_can_do_without_a_secret(tmp_path):
    program = """
import sys
from datetime import timedelta
import torch.distributed as dist
from unisono.torch import _connect
store = dist.FileStore(sys.argv[1], 1)
for name in ("one", "two"):
    _connect.connect(dist.PrefixStore(name, store), 0, 1, timedelta(seconds=20), {"bind_addr": sys.argv[2]})
"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no network")
        outside = probe.getsockname()[0]

    def errors_of(address, **secret):
        environ = {name: value for name, value in os.environ.items() if not name.startswith("UNISONO_")}
        path = tmp_path / f"store-{address}-{len(secret)}"
        words = [sys.executable, "-c", program, str(path), address]
        return subprocess.run(words, env={**environ, **secret}, check=True, stderr=subprocess.PIPE, text=True).stderr

    told = errors_of(outside)
    assert told.count("rank 0 writes the secret of the job in clear into the store") == 1
    assert "Anybody on the network who can read the store can join the job and read and change its data" in told
    assert "in clear" not in errors_of("127.0.0.1")
    assert "in clear" in errors_of("127.0.0.1", TMPDIR="/proc/unisono", XDG_RUNTIME_DIR="")
    assert "in clear" not in errors_of(outside, UNISONO_SECRET=SECRET)


def test_callback_may_wait_for_a_later_collective(processes):
    def body(rank, size):
        def again(future):
            second = dist.all_reduce(future.value()[0], async_op=True)
            return second.get_future().wait()[0]

        first = dist.all_reduce(torch.ones(5), async_op=True)
        assert (first.get_future().then(again).wait() == 4).all()

    processes(2, body)


def test_errors_carry_the_text_of_the_library(processes):
    def body(rank, size):
        with pytest.raises(errors.Mismatch, match="but rank . called all_reduce") as caught:
            dist.all_reduce(torch.ones(3 + rank))
        assert caught.value.code == 4 and "make every rank call the same" in str(caught.value)

    processes(2, body)


@pytest.mark.parametrize("call", ["broadcast", "reduce", "scatter", "broadcast_object_list"])
def test_ranks_that_name_different_roots_are_told(processes, call):
    def body(rank, size):
        root = rank // 2 * 2
        tensor = torch.full((3,), float(rank))
        with pytest.raises(errors.Mismatch) as caught:
            if call == "broadcast_object_list":
                dist.broadcast_object_list([rank], src=root)
            elif call == "scatter":
                dist.scatter(tensor, list(torch.ones(size, 3).unbind()) if rank == root else None, root)
            else:
                getattr(dist, call)(tensor, root)
            dist.barrier()
        # What rank 3 called is told by the error of rank 2 at the latest.
        assert all(f"root {one}" in str(caught.value) for one in (0, 2)), str(caught.value)

    processes(4, body)


def test_timeout_of_the_group_ends_a_wait(processes):
    def body(rank, size):
        # The ranks of a group must also meet within its timeout, so it is long enough for busy cores.
        group = dist.new_group(timeout=timedelta(seconds=8))
        begun = time.monotonic()
        if rank == 0:
            with pytest.raises(errors.Timeout, match="waiting for rank 1"):
                dist.barrier(group)
            assert 7.9 < time.monotonic() - begun
        dist.barrier()

    processes(2, body)


def test_failed_rank_is_named(processes):
    def body(rank, size):
        if rank == 1:
            os._exit(0)
        with pytest.raises(errors.PeerFailed, match="rank 1 is gone"):
            dist.all_reduce(torch.ones(3))
        os._exit(0)

    processes(2, body)


def test_abort_ends_operations_on_all_ranks(processes):
    def body(rank, size):
        group = dist.new_group()
        if rank == 0:
            time.sleep(0.3)
            group._get_backend(torch.device("cpu")).abort()
        else:
            with pytest.raises(errors.Aborted):
                dist.barrier(group)
        dist.barrier()

    processes(2, body)


def test_data_loader_workers_do_not_touch_the_group(processes):
    def body(rank, size):
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        for _ in range(2):
            loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
            for (batch,) in loader:
                dist.all_reduce(batch)
        dist.barrier()

    processes(2, body)


def test_group_of_several_backends_has_its_own_for_the_cpu(processes):
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    from unisono.torch import _versions

    if not _versions.HAS_BACKENDS:
        pytest.skip("this version of torch takes a Python backend only for the whole group")

    def body(rank, size):
        assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "unisono"
        values = torch.ones(3)
        dist.all_reduce(values)
        work = dist.all_reduce(values, async_op=True)
        work.wait()
        assert (values == 4).all()

    processes(2, body, "cpu:unisono,cuda:fake")


def test_profiler_shows_operations_with_shapes(processes):
    def body(rank, size):
        with torch.profiler.profile(record_shapes=True) as profile:
            dist.all_reduce(torch.ones(3, 4))
            dist.broadcast(torch.ones(7), 0)
        entries = {event.name: event.input_shapes for event in profile.events()}
        assert entries["unisono:all_reduce"] == [[3, 4]] and entries["unisono:broadcast"] == [[7]]

    processes(2, body)


def test_flight_record_names_the_operations(processes):
    def body(rank, size):
        import json

        dist.all_reduce(torch.ones(3))
        record = json.loads(dist.group.WORLD._get_backend(torch.device("cpu")).flight_record())
        assert "all_reduce" in record["operations"][0]["call"] and record["ranks"] == size

    processes(2, body)


def test_sharded_training_takes_the_same_steps(processes):
    def body(rank, size):
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        losses = []
        for wrap in (DistributedDataParallel, fully_shard):
            torch.manual_seed(0)
            model = wrap(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            torch.manual_seed(rank)
            for _ in range(5):
                loss = model(torch.randn(8, 16)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)

    processes(2, body)


def test_messages_cross_without_an_order(processes):
    def body(rank, size):
        peer, length = 1 - rank, 1 << 20
        works = [dist.isend(torch.full((length,), float(tag)), peer, tag=tag) for tag in range(3)]
        outputs = [torch.zeros(length) for _ in range(3)]
        works += [dist.irecv(outputs[tag], peer, tag=tag) for tag in (2, 0, 1)]
        dist.barrier()
        for work in works:
            work.wait()
        assert all((output == tag).all() for tag, output in enumerate(outputs))
        if rank == 0:
            dist.send(torch.ones(3), 1)
        else:
            assert dist.recv(output := torch.zeros(3)) == 0 and (output == 1).all()

    processes(2, body)


def test_message_of_another_size_is_an_error(processes):
    def body(rank, size):
        if rank == 0:
            dist.send(torch.ones(3), 1)
        else:
            with pytest.raises(errors.CountMismatch, match="rank 0 sent 12 bytes under tag 0 where 20"):
                dist.recv(torch.zeros(5), 0)
        dist.barrier()

    processes(2, body)


def test_tensors_of_two_types_in_one_call_are_refused(processes):
    def body(rank, size):
        numbers, floats = torch.ones(4, dtype=torch.int32), torch.zeros(4)
        for call in (
            lambda: dist.reduce_scatter_tensor(floats[:2], numbers),
            lambda: dist.all_gather_into_tensor(floats, numbers[:2]),
        ):
            with pytest.raises(errors.InvalidUsage, match="torch.*32 and torch.*32"):
                call()
        dist.all_reduce(floats)

    processes(2, body)


def test_tensor_without_memory_and_negative_tag_are_refused(processes):
    def body(rank, size):
        freed = torch.ones(1000)
        view = freed[10:20]
        freed.untyped_storage().resize_(0)
        for tensor in (freed, view):
            with pytest.raises(errors.InvalidUsage, match="no memory"):
                dist.all_reduce(tensor)
            with pytest.raises(errors.InvalidUsage, match="no memory"):
                dist.send(tensor, 1 - rank)
        with pytest.raises(errors.InvalidUsage, match=f"rank {rank} in send: the tag is -1"):
            dist.send(torch.ones(1), 1 - rank, tag=-1)

    processes(2, body)


def test_sparse_tensors_of_peers_are_checked_on_all_ranks(processes):
    """torch writes at the indices of a sparse tensor without a look at its shape."""

    def unchecked(index, size):
        indices = torch.tensor([[index]])
        return torch.sparse_coo_tensor(indices, torch.ones(1), (size,), is_coalesced=True, check_invariants=False)

    def body(rank, size):
        for evil, text in (
            (unchecked(10, 10), r"rank 1 sent the index \[10\]"),
            (unchecked(-1, 10), r"rank 1 sent the index \[-1\]"),
            (unchecked(1 << 40, 10), r"rank 1 sent the index \[1099511627776\]"),
            (unchecked(10, 11), r"rank 1 sent a tensor of the shape \[11\]"),
        ):
            tensor = evil if rank == 1 else torch.ones(10).to_sparse()
            with pytest.raises(errors.InvalidUsage, match=f"rank {rank} in sparse all_reduce: {text}"):
                dist.all_reduce(tensor)
        _send_count(rank, 1 << 40)
        _send_count(rank, -1)
        tensor = torch.ones(10).to_sparse()
        dist.all_reduce(tensor)
        assert tensor.to_dense().tolist() == [size] * 10

    def _send_count(rank, count):
        from unisono.torch import _sparse
        from unisono.torch._tensors import even

        if rank == 1:
            comm = dist.group.WORLD._get_backend(torch.device("cpu"))._comm
            head = _sparse._head(count, 1, torch.float32, (10,))
            heads = torch.zeros((2, len(head)), dtype=torch.int64)
            comm.run([even("all_gather", torch.int64, [head], [heads])])
            with pytest.raises(errors.InvalidUsage, match=f"rank 1 sent .* and {count} entries"):
                _sparse._check_heads(rank, heads.tolist())
        else:
            with pytest.raises(errors.InvalidUsage, match=f"rank 1 sent .* and {count} entries"):
                dist.all_reduce(torch.ones(10).to_sparse())

    processes(2, body)


def test_announced_entries_of_sparse_tensors_reserve_little_memory(processes):
    """A rank that announces as many entries as fit sends none of them."""

    def body(rank, size):
        from unisono.torch import _sparse
        from unisono.torch._tensors import even

        comm = dist.group.WORLD._get_backend(torch.device("cpu"))._comm
        dist.all_reduce(torch.ones(10).to_sparse())
        cells = 1 << 32
        if rank == 1:
            head = _sparse._head(cells, 1, torch.float32, (cells,))
            heads = torch.zeros((2, len(head)), dtype=torch.int64)
            comm.run([even("all_gather", torch.int64, [head], [heads])])
            comm.abort("no entries follow")
            return
        before = address_space()
        with pytest.raises(errors.Error, match="no entries follow"):
            dist.all_reduce(torch.sparse_coo_tensor([[7]], torch.ones(1), (cells,)))
        grown = address_space() - before
        assert grown < 1 << 30, f"{grown} bytes"

    def address_space():
        status = open("/proc/self/status").read()
        return 1024 * int(re.search(r"VmPeak:\s+(\d+)", status).group(1))

    processes(2, body)


def test_sparse_tensors_longer_than_a_turn_are_summed(processes, monkeypatch):
    from unisono.torch import _sparse

    monkeypatch.setattr(_sparse, "FIRST_TURN_BYTES", 64)

    def body(rank, size):
        for width in ((), (3,)):
            dense = torch.zeros((1000, *width))
            dense[rank :: rank + 2] = torch.randn(dense[rank :: rank + 2].shape)
            sparse, total = dense.to_sparse(1), dense.clone()
            dist.all_reduce(sparse)
            dist.all_reduce(total)
            assert torch.equal(sparse.to_dense(), total)

    processes(2, body)


def test_ended_group_leaves_no_store_of_its_monitored_barriers(processes):
    def body(rank, size):
        dist.monitored_barrier()
        dist.monitored_barrier()
        store = weakref.ref(dist.group.WORLD._get_backend(torch.device("cpu"))._store)
        dist.destroy_process_group()
        gc.collect()
        assert store() is None

    processes(2, body)


def test_pipeline_takes_the_steps_of_one_process(processes):
    def body(rank, size):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 8) for _ in range(size)]
        inputs, targets = torch.randn(8, 8), torch.randn(8, 8)
        stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
        schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
        losses = []
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=losses)
        reference = [torch.nn.Linear(8, 8) for _ in range(size)]
        for own, other in zip(layers, reference):
            other.load_state_dict(own.state_dict())
        torch.nn.functional.mse_loss(reference[1](reference[0](inputs)), targets).backward()
        assert torch.allclose(layers[rank].weight.grad, reference[rank].weight.grad, atol=1e-6)

    processes(2, body)


def test_checkpoint_tensor_parallel_and_sharded_optimizer(processes):
    def body(rank, size):
        import tempfile

        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
        inputs = torch.randn(4, 8)
        expected = model(inputs).detach()
        folder = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folder, 0)
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        split = parallelize_module(model, init_device_mesh("cpu", (size,)), plan)
        assert torch.allclose(split(inputs), expected, atol=1e-6)
        checkpoint.save(state := split.state_dict(), checkpoint_id=folder[0])
        for value in state.values():
            value.zero_()
        checkpoint.load(state, checkpoint_id=folder[0])
        assert torch.allclose(split(inputs), expected, atol=1e-6)
        plain = DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = ZeroRedundancyOptimizer(plain.parameters(), torch.optim.Adam, lr=0.01)
        plain(inputs).square().sum().backward()
        optimizer.step()
        weights = [torch.zeros(8, 8) for _ in range(size)]
        dist.all_gather(weights, plain.module.weight.detach())
        assert torch.equal(weights[0], weights[1])

    processes(2, body)
