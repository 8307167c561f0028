"""Communicators for arrays."""

import array
import os
import subprocess
import sys
import threading
import time

import numpy
import pytest

import unisono
from unisono import errors

ml_dtypes = pytest.importorskip("ml_dtypes")

TYPES = [
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_all_reduce_sums_every_type(threads, dtype):
    def body(comm):
        values = numpy.full(37, comm.rank + 1).astype(dtype)
        comm.all_reduce(values)
        return values

    for values in threads(3, body):
        assert (values.astype("complex128") == 6).all()


@pytest.mark.parametrize("op,expected", [("sum", 9), ("prod", 24), ("min", 2), ("max", 4), ("avg", 3)])
def test_all_reduce_knows_every_reduction(threads, op, expected):
    def body(comm):
        output = numpy.zeros(5)
        comm.all_reduce(numpy.full(5, comm.rank + 2.0), op, output=output)
        return output

    assert all((output == expected).all() for output in threads(3, body))


@pytest.mark.parametrize("op,expected", [("bitand", 1), ("bitor", 15), ("bitxor", 15)])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
def test_bitwise_reductions_combine_all_bits(threads, op, expected, dtype):
    def body(comm):
        values = numpy.full(5, 1 | 2 << comm.rank, dtype=dtype)
        comm.all_reduce(values, op)
        return values

    assert all((values == expected).all() for values in threads(3, body))


def test_truth_values_are_combined_as_such(threads):
    def body(comm):
        results = []
        for op in ("bitand", "bitor", "bitxor", "min", "max"):
            values = numpy.array([True, comm.rank == 1, False])
            comm.all_reduce(values, op)
            results.append(values.tolist())
        with pytest.raises(errors.InvalidUsage, match="sum is not defined for bool"):
            comm.all_reduce(numpy.array([True]))
        return results

    some, every = [True, True, False], [True, False, False]
    assert threads(3, body) == [[every, some, some, every, some]] * 3


def test_scans_combine_the_ranks_below(threads):
    def body(comm):
        values = numpy.full(3, comm.rank + 1)
        comm.scan(values, output=(inclusive := numpy.zeros(3, dtype=int)))
        comm.exscan(values, "prod")
        comm.scan(maximum := numpy.array([(5, 2, 9)[comm.rank]]), "max")
        return inclusive.tolist(), values.tolist(), maximum[0]

    assert threads(3, body) == [
        ([1] * 3, [1] * 3, 5), ([3] * 3, [1] * 3, 5), ([6] * 3, [2] * 3, 9),
    ]  # fmt: skip


def test_root_gathers_and_scatters_uneven_shares(threads):
    def body(comm):
        rank, counts, root = comm.rank, [1, 0, 3], 2
        own = numpy.full(counts[rank], rank, dtype="complex128")
        everything = numpy.zeros(4, dtype="complex128") if rank == root else None
        comm.gather_v(own, everything, counts if rank == root else None, root)
        assert everything is None or everything.tolist() == [0, 2, 2, 2]
        share = numpy.zeros(counts[rank], dtype="int16")
        source = numpy.arange(4, dtype="int16") if rank == root else None
        work = comm.scatter_v(source, counts if rank == root else None, share, root, async_op=True)
        assert work.wait(20) is share
        with pytest.raises(errors.InvalidUsage, match="counts"):
            comm.gather_v(own, own, None, rank)
        return share.tolist()

    assert threads(3, body) == [[0], [], [1, 2, 3]]


def test_barrier_with_a_timeout_names_who_is_missing(threads):
    late = threading.Event()

    def body(comm):
        comm.barrier_timeout(20)
        if comm.rank == 2:
            assert late.wait(20)
            return None
        with pytest.raises(errors.BarrierTimeout, match="rank 2") as caught:
            comm.barrier_timeout(0.3)
        assert caught.value.code == 18 and isinstance(caught.value, errors.Timeout)
        late.set()
        return caught.value.missing

    assert threads(3, body) == [[2], [2], None]


def test_pre_mul_sum_multiplies_by_the_factor_of_each_rank(threads):
    def body(comm):
        values = numpy.full(4, 2, dtype="int64")
        comm.all_reduce(values, "pre_mul_sum", factor=comm.rank + 1)
        with pytest.raises(errors.InvalidUsage, match="needs a factor"):
            comm.all_reduce(values, "pre_mul_sum")
        return values

    assert all((values == 6).all() for values in threads(2, body))


def test_every_collective_moves_what_it_should(threads):
    def body(comm):
        rank, size = comm.rank, comm.size
        own, all_ranks = numpy.array([rank, rank + 10]), numpy.zeros(2 * size, dtype=int)
        comm.all_gather(own, all_ranks)
        expected = numpy.array([[source, source + 10] for source in range(size)]).ravel()
        assert (all_ranks == expected).all()
        share = numpy.zeros(2, dtype=int)
        comm.reduce_scatter(expected, share)
        assert (share == size * own).all()
        comm.all_to_all(numpy.arange(size) + 100 * rank, row := numpy.zeros(size, dtype=int))
        assert (row == 100 * numpy.arange(size) + rank).all()
        root = size - 1
        gathered = numpy.zeros(2 * size, dtype=int) if rank == root else None
        comm.gather(own, gathered, root)
        assert gathered is None or (gathered == expected).all()
        comm.scatter(expected if rank == root else None, share := numpy.zeros(2, dtype=int), root)
        assert (share == own).all()
        comm.broadcast(value := numpy.array([float(rank)]), 1)
        assert value[0] == 1
        comm.reduce(value, root=root)
        assert rank != root or value[0] == size
        comm.barrier()

    threads(3, body)


def test_uneven_collectives_take_counts(threads):
    def body(comm):
        rank, size = comm.rank, comm.size
        counts = [source + 1 for source in range(size)]
        output = numpy.zeros(sum(counts), dtype="float32")
        comm.all_gather_v(numpy.full(rank + 1, rank, dtype="float32"), output, counts)
        assert output.tolist() == [0, 1, 1, 2, 2, 2]
        for share in (numpy.zeros(counts[rank], dtype="uint16"), slice(sum(counts[:rank]), sum(counts[: rank + 1]))):
            values = numpy.arange(6, dtype="uint16")
            share = values[share] if isinstance(share, slice) else share
            comm.reduce_scatter_v(values, share, counts)
            assert share.tolist() == [[0], [3, 6], [9, 12, 15]][rank]
        sends, receives = [rank] * size, list(range(size))
        received = numpy.zeros(sum(receives), dtype="int16")
        comm.all_to_all_v(numpy.full(sum(sends), rank, dtype="int16"), sends, received, receives)
        assert received.tolist() == [1, 2, 2]

    threads(3, body)


def test_input_may_be_this_ranks_share_of_the_output(threads):
    def body(comm):
        output = numpy.zeros((comm.size, 3))
        output[comm.rank] = comm.rank + 1
        comm.all_gather(output[comm.rank], output)
        comm.reduce_scatter(output, output[comm.rank])
        return output[comm.rank]

    assert [share.tolist() for share in threads(2, body)] == [[2, 2, 2], [4, 4, 4]]


def test_objects_with_a_buffer_are_arrays(threads):
    def body(comm):
        numbers = array.array("d", [comm.rank, 1])
        comm.all_reduce(numbers)
        comm.all_gather(bytes([comm.rank]), output := bytearray(2))
        with pytest.raises(errors.InvalidUsage, match="read-only"):
            comm.all_reduce(b"12")
        return numbers.tolist(), bytes(output)

    assert threads(2, body) == [([1, 2], b"\0\1")] * 2


class Speaker:
    """An array that speaks DLPack alone."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self):
        return self.values.__dlpack__()


def test_inputs_may_speak_dlpack(threads):
    def body(comm):
        comm.all_gather(Speaker(numpy.array([comm.rank, 7])), output := numpy.zeros(4, dtype=int))
        with pytest.raises(errors.InvalidUsage, match="not contiguous"):
            comm.all_gather(Speaker(numpy.zeros((4, 4))[:, 1]), output)
        return output.tolist()

    assert threads(2, body) == [[0, 7, 1, 7]] * 2


def test_unusable_arrays_are_refused(threads):
    def body(comm):
        refused = [
            (numpy.zeros((4, 4))[:, 1], "not contiguous"),
            (numpy.zeros(2, dtype=">f4"), "byte order"),
            (numpy.zeros(2, dtype="longdouble"), "cannot carry"),
            ("text", "neither a buffer nor DLPack"),
        ]
        for value, part in refused:
            with pytest.raises(errors.InvalidUsage, match=part):
                comm.all_reduce(value)
        with pytest.raises(errors.InvalidUsage, match="same type"):
            comm.all_gather(numpy.zeros(1), numpy.zeros(1, dtype=int))

    threads(1, body)


def test_async_operations_run_in_order_and_call_back(threads):
    def body(comm):
        buffers = [numpy.full(100, float(number)) for number in range(20)]
        works = [comm.all_reduce(buffer, async_op=True) for buffer in buffers]
        called = threading.Event()
        works[-1].add_done_callback(lambda work: called.set())
        assert works[-1].wait(20) is buffers[-1] and called.wait(20)
        assert all(work.is_finished() and work.exception() is None for work in works)
        return [buffer[0] for buffer in buffers]

    assert threads(2, body) == [[2.0 * number for number in range(20)]] * 2


def test_callback_may_wait_for_a_later_operation(threads):
    def body(comm):
        done, seen = threading.Event(), []

        def callback(work):
            seen.append(comm.all_reduce(numpy.ones(1), async_op=True).wait(20)[0])
            done.set()

        comm.barrier(async_op=True).add_done_callback(callback)
        assert done.wait(20)
        return seen

    assert threads(2, body) == [[2.0], [2.0]]


def test_forked_child_has_callback_threads_of_its_own(threads):
    def call_back(comm):
        called = threading.Event()
        comm.barrier(async_op=True).add_done_callback(lambda work: called.set())
        return called.wait(5)

    assert threads(2, call_back) == [True, True]
    child = os.fork()
    if child == 0:
        ranks = unisono.Communicator.local(2)
        results = [False, False]
        both = [threading.Thread(target=lambda c=comm: results.__setitem__(c.rank, call_back(c))) for comm in ranks]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join(10)
        os._exit(0 if all(results) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_wait_ends_at_its_timeout(threads):
    late = threading.Event()

    def body(comm):
        if comm.rank == 0:
            work = comm.barrier(async_op=True)
            with pytest.raises(errors.Timeout, match="goes on") as caught:
                work.wait(0.05)
            assert caught.value.code == 8 and not work.is_finished()
            late.set()
            work.wait(20)
        else:
            assert late.wait(20)
            comm.barrier()

    threads(2, body)


def test_failure_of_a_dropped_handle_is_told(threads, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))

    def body(comm):
        work = comm.all_reduce(numpy.zeros(3 + comm.rank), async_op=True)
        while not work.is_finished():
            time.sleep(0.001)
        if comm.rank == 0:
            # Who has looked at the error is not told again.
            assert isinstance(work.exception(), errors.Mismatch)

    threads(2, body)
    assert [type(error) for error in told] == [errors.Mismatch] and told[0].rank == 1


def test_failure_of_a_dropped_handle_leaves_the_exception_that_is_raised(threads, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)

    def wait_long_for(work):
        while not work.is_finished():
            time.sleep(0.001)
        time.sleep(0.05)
        work.wait(20)

    def body(comm):
        first = comm.all_reduce(numpy.zeros(3 + comm.rank), async_op=True)
        with pytest.raises(errors.Mismatch):
            # The second handle has no name, so it is dropped while the exception of the first is on its way.
            _ = [comm.all_reduce(numpy.zeros(3), async_op=True), wait_long_for(first)]

    threads(2, body)


def test_failure_after_the_handle_was_dropped_is_told(threads, capfd):
    def body(comm):
        if comm.rank == 0:
            comm.all_reduce(numpy.zeros(3), async_op=True)
        else:
            comm.abort("enough")
        while comm.error() is None:
            time.sleep(0.001)

    threads(2, body)
    assert "an operation failed whose handle nobody kept: " in capfd.readouterr().err


def test_mismatch_is_an_error_on_both_ranks(threads):
    def body(comm):
        with pytest.raises(errors.Mismatch) as caught:
            if comm.rank == 0:
                comm.all_reduce(numpy.zeros(3))
            else:
                comm.all_reduce(numpy.zeros(4))
        error = caught.value
        assert error.code == 4 and error.peer == 1 - comm.rank and error.is_poisoning
        assert type(comm.error()) is errors.Mismatch
        return error.rank

    assert threads(2, body) == [0, 1]


def test_abort_ends_a_waiting_rank(threads):
    def body(comm):
        if comm.rank == 0:
            time.sleep(0.2)
            comm.abort("enough")
        else:
            with pytest.raises(errors.Aborted, match="rank 0 aborted: enough"):
                comm.barrier()

    threads(2, body)


def test_join_connects_processes():
    identity = unisono.unique_id()
    read, write = os.pipe()
    child = os.fork()
    comm = unisono.Communicator.join(identity, 0 if child else 1, 2, {"timeout_ms": 20000})
    comm.all_reduce(values := numpy.ones(1000, dtype="float32"))
    assert comm.size == 2 and comm.transport == "shm"
    if child == 0:
        os.write(write, bytes([int(values[5])]))
        os._exit(0)
    assert os.read(read, 1) == b"\2" and os.waitpid(child, 0)[1] == 0


def test_forked_child_has_no_part_in_the_communicator():
    comm = unisono.Communicator.local(1)[0]
    child = os.fork()
    if child == 0:
        try:
            comm.barrier(async_op=True).wait(5)
        except errors.InvalidUsage as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    comm.barrier()


def test_errors_say_who_left_and_whether_shrink_helps(threads):
    def body(comm):
        if comm.rank == 1:
            return comm.close()
        gradients, total = numpy.ones(3), numpy.empty(3)
        with pytest.raises(errors.PeerFinalized) as raised:
            comm.all_reduce(gradients, output=total)
        assert raised.value.is_recoverable and raised.value.peer == 1
        assert (gradients == 1).all()
        left = comm.shrink()
        left.all_reduce(gradients, output=total)
        left.abort("enough")
        with pytest.raises(errors.Aborted) as raised:
            left.barrier()
        assert not raised.value.is_recoverable
        return total[0]

    # The rank that is left alone aborts only its own group.
    assert threads(2, body) == [1.0, None]


def test_survivors_agree_on_the_smallest_value(threads):
    def body(comm):
        if comm.rank == 1:
            return comm.close()
        with pytest.raises(errors.Error) as raised:
            comm.barrier()
        assert raised.value.is_recoverable
        for value in (-1, 2**64, 1.5):
            with pytest.raises(errors.InvalidUsage, match="in shrink_and_agree: value is"):
                comm.shrink_and_agree(value)
        left, step = comm.shrink_and_agree(2**63 + 40 + comm.rank)
        assert left.size == 2
        return step - 2**63

    assert threads(3, body) == [40, None, 40]


def test_split_shrink_and_flight_record(threads):
    def body(comm):
        half = comm.split(comm.rank % 2, settings={"channels": 1})
        assert half.size == 2 and comm.split(None) is None
        half.all_reduce(values := numpy.ones(3))
        record = comm.flight_record()
        assert record["ranks"] == 4 and any("split" in row["call"] for row in record["operations"])
        half.close()
        with pytest.raises(errors.InvalidUsage, match="closed"):
            half.barrier()
        comm.barrier()
        return values[0]

    assert threads(4, body) == [2.0] * 4


def test_settings_are_checked_by_name():
    with pytest.raises(errors.InvalidUsage, match="no such setting"):
        unisono.Communicator.local(1, slot_machines=4)
    with pytest.raises(errors.BootstrapError) as caught:
        unisono.Communicator.join(unisono.unique_id(), 0, 2, {"join_timeout_ms": 200})
    assert caught.value.code == 3


def test_every_code_has_a_class():
    assert set(errors._CLASSES) == set(range(1, 19))
    assert type(errors._make(99, "later", {})) is errors.Error


def test_messages_match_by_source_and_tag(threads):
    def body(comm):
        if comm.rank == 0:
            late = comm.irecv(numpy.zeros(1000000), 1, tag=2)
            early = comm.irecv(buffer := numpy.zeros(4, dtype="int32"), tag=1)
            assert early.wait(20) is buffer and (early.source, early.tag, early.bytes) == (2, 1, 8)
            assert buffer.tolist() == [2, 2, 0, 0] and (late.wait(20) == 1).all()
        elif comm.rank == 1:
            work = comm.isend(numpy.ones(1000000), 0, tag=2)
            comm.barrier(async_op=True).wait(20)
            return work.wait(20) is not None
        else:
            comm.isend(numpy.full(2, 2, dtype="int32"), 0, tag=1).wait(20)
        comm.barrier()

    threads(3, body)


def test_probe_tells_of_a_message_and_leaves_it(threads):
    def body(comm):
        if comm.rank == 0:
            comm.isend(bytes(5), 1, tag=9).wait(20)
        else:
            deadline = time.monotonic() + 20
            while (found := comm.probe()) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert found == (0, 9, 5) and comm.irecv(bytearray(5), 0, 9).wait(20) == bytes(5)
        comm.barrier()

    threads(2, body)


def test_wait_of_a_message_may_end_before_it(threads):
    def body(comm):
        if comm.rank == 0:
            work = comm.irecv(buffer := numpy.zeros(100000), 1, 3)
            for _ in range(3):
                with pytest.raises(errors.Timeout):
                    work.wait(0.05)
            assert not work.is_finished()
            comm.barrier()
            assert work.wait(20) is buffer and (buffer == 7).all() and work.wait(20) is buffer
        else:
            comm.barrier()
            comm.isend(numpy.full(100000, 7.0), 0, 3).wait(20)
        comm.barrier()

    threads(2, body)


def test_several_threads_wait_for_one_message(threads):
    def body(comm):
        if comm.rank == 0:
            work = comm.irecv(buffer := numpy.zeros(1000), 1, 3)
            seen = []
            waits = [threading.Thread(target=lambda: seen.append(work.wait(20).sum())) for _ in range(3)]
            for wait in waits:
                wait.start()
            comm.barrier()
            for wait in waits:
                wait.join(20)
            assert seen == [2000.0] * 3 and buffer.sum() == 2000
        else:
            comm.barrier()
            comm.isend(numpy.full(1000, 2.0), 0, 3).wait(20)
        comm.barrier()

    threads(2, body)


ENDING_RANK = """
import sys, time, numpy, unisono
rank, end = int(sys.argv[2]), sys.argv[4]
comm = unisono.Communicator.join(sys.argv[1], rank, 4, {"transport": sys.argv[3], "timeout_ms": 20000})
for number in range(1 if rank < 2 else 50):
    value = numpy.array([number])
    sent, received = comm.isend(numpy.array([number]), rank ^ 1), comm.irecv(value, rank ^ 1)
    received.wait()
    sent.wait()
    assert value[0] == number
    time.sleep(0.001)
if end == "close":
    comm.close()
elif end == "exit":
    sys.exit(0)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("end", ["close", "end", "exit"])
def test_process_may_end_after_its_last_message(transport, end):
    id = unisono.unique_id()
    start = [sys.executable, "-c", ENDING_RANK, id]
    ranks = [
        subprocess.Popen([*start, str(rank), transport, end], stderr=subprocess.PIPE, text=True) for rank in range(4)
    ]
    for rank in ranks:
        said = rank.communicate(timeout=60)[1]
        assert rank.returncode == 0, said
