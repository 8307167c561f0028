"""Calls that are refused, with errors that name the rank and the operation."""

import ctypes

import numpy
import pytest

from unisono import errors

ml_dtypes = pytest.importorskip("ml_dtypes")


class Giver:
    """An object that gives what it has as its capsule of DLPack."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self):
        return self.capsule


def _used_capsule():
    capsule = numpy.zeros(2).__dlpack__()
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    assert rename(capsule, b"used_dltensor") == 0
    return capsule


def test_objects_without_a_capsule_of_dlpack_are_refused(threads):
    def body(comm):
        for capsule in (None, 3, _used_capsule()):
            with pytest.raises(errors.InvalidUsage, match="rank 0 in all_reduce: input"):
                comm.all_reduce(Giver(capsule), output=numpy.zeros(2))

    threads(1, body)


def test_missing_arrays_are_refused(threads):
    def body(comm):
        ones = numpy.ones(2)
        for call in (
            lambda: comm.all_reduce(None), lambda: comm.broadcast(None), lambda: comm.barrier() or comm.scan(None),
            lambda: comm.all_gather(None, None), lambda: comm.all_gather(ones, None), lambda: comm.reduce(None),
            lambda: comm.gather(ones, None, comm.rank), lambda: comm.scatter(None, ones, comm.rank),
            lambda: comm.gather_v(ones, None, [2], comm.rank), lambda: comm.send(None, 0),
        ):  # fmt: skip
            with pytest.raises(errors.InvalidUsage, match="rank 0 in .*NoneType"):
                call()

    threads(1, body)


def test_scalars_are_inputs_but_no_results(threads):
    def body(comm):
        comm.all_reduce(numpy.float64(7), output=(output := numpy.zeros(1)))
        for scalar in (numpy.float64(7), numpy.int32(7), ml_dtypes.bfloat16(7)):
            with pytest.raises(errors.InvalidUsage, match="read-only|neither a buffer"):
                comm.all_reduce(scalar)
        return output.tolist()

    assert threads(2, body) == [[14]] * 2


def test_numbers_out_of_range_name_rank_and_operation(threads):
    def body(comm):
        one, two = numpy.ones(1), numpy.ones(2)
        for name, call in {
            "broadcast: root is -1": lambda: comm.broadcast(one, -1),
            "reduce: root is 2": lambda: comm.reduce(one, root=2),
            "gather: root is 0.5": lambda: comm.gather(one, two, 0.5),
            "gather_v: root is -1": lambda: comm.gather_v(one, two, [1, 1], -1),
            "scatter_v: root is -1": lambda: comm.scatter_v(two, [1, 1], one, -1),
            "send: peer is -1": lambda: comm.send(one, -1),
            "recv: peer is 2": lambda: comm.recv(one, 2),
            "isend: to is -1": lambda: comm.isend(one, -1),
            "isend: tag is -1": lambda: comm.isend(one, 0, -1),
            "irecv: source is -1": lambda: comm.irecv(one, -1),
            "irecv: tag is 9223372036854775808": lambda: comm.irecv(one, 0, 2**63),
            "probe: source is -1": lambda: comm.probe(-1),
            "split: color is -1": lambda: comm.split(-1),
            "split: key is 2147483648": lambda: comm.split(0, 2**31),
            "all_gather_v: counts.0. is -1": lambda: comm.all_gather_v(one, two, [-1, 3]),
            "all_gather_v: counts.1. is 1.5": lambda: comm.all_gather_v(one, two, [1, 1.5]),
            "all_gather_v: counts.0. is 4611686018427387904": lambda: comm.all_gather_v(one, two, [2**62, 1]),
            "all_gather_v: the counts are None": lambda: comm.all_gather_v(one, two, None),
            "reduce_scatter_v: counts.0. is -1": lambda: comm.reduce_scatter_v(two, one, [-1, 3]),
            "all_to_all_v: counts.1. is -1": lambda: comm.all_to_all_v(two, [1, 1], two, [3, -1]),
        }.items():
            with pytest.raises(errors.InvalidUsage, match=f"rank {comm.rank} in {name}"):
                call()
        with pytest.raises(errors.InvalidUsage, match="float128"):
            comm.all_gather_v(one.astype("longdouble"), two.astype("longdouble"), [1, 1])

    threads(2, body)


def test_counts_may_be_an_array(threads):
    def body(comm):
        counts, output = numpy.array([1, 2]), numpy.zeros(3)
        comm.gather_v(numpy.full(counts[comm.rank], comm.rank + 1.0), output, counts, 0)
        return output.tolist()

    assert threads(2, body)[0] == [1, 2, 2]


def test_message_that_has_not_come_has_no_source(threads):
    def body(comm):
        message = comm.irecv(numpy.zeros(1), tag=3)
        for attribute in ("source", "tag", "bytes"):
            with pytest.raises(errors.InvalidUsage, match="no message has arrived"):
                getattr(message, attribute)
        comm.isend(numpy.ones(1), 0, 3).wait(20)
        message.wait(20)
        return message.source, message.tag, message.bytes

    assert threads(1, body) == [(0, 3, 8)]


def test_tensors_with_other_memory_than_values_are_refused(threads):
    torch = pytest.importorskip("torch")

    def body(comm):
        number, freed = torch.tensor([1 + 2j]), torch.ones(1000)
        view = freed[10:20]
        freed.untyped_storage().resize_(0)
        for tensor, part in (
            (number.conj(), "resolve_conj"), (number.conj().imag, "resolve_neg"), (freed, "no memory"), (view, "no memory"),
        ):  # fmt: skip
            with pytest.raises(errors.InvalidUsage, match=part):
                comm.all_reduce(tensor)
            with pytest.raises(errors.InvalidUsage, match=part):
                comm.isend(tensor, 0)

    threads(1, body)


def test_lengths_blame_the_longer_side(threads):
    """The side with one share says how long shares are; the error is about the other one."""

    def body(comm):
        one, many = numpy.zeros(4, "float32"), numpy.zeros(3, "float32")
        for name, call in {
            "all_gather #0: output has 12 bytes, but 32 are needed": lambda: comm.all_gather(one, many),
            "reduce_scatter #0: input has 12 bytes, but 32 are needed": lambda: comm.reduce_scatter(many, one),
            "all_reduce #0: output has 12 bytes, but 16 are needed": lambda: comm.all_reduce(one, output=many),
            "scan #0: output has 12 bytes, but 16 are needed": lambda: comm.scan(one, output=many),
        }.items():
            with pytest.raises(errors.InvalidUsage, match=name):
                call()

    threads(2, body)


def test_arrays_of_references_are_refused(threads):
    """The bytes of a peer would become pointers of this process."""
    of_references = [
        numpy.array([None, "text"], dtype=object),
        numpy.zeros(2, dtype=[("number", "i4"), ("name", "O")]),
        numpy.zeros(2, dtype=[("pair", [("inner", "O", 2)])]),
        (ctypes.py_object * 2)(1, 2),
        memoryview(numpy.array([None, "text"], dtype=object)),
        memoryview(numpy.zeros(2, dtype=[("name", "O")])),
    ]
    if hasattr(numpy.dtypes, "StringDType"):
        of_references.append(numpy.array(["short", "long" * 100], dtype=numpy.dtypes.StringDType()))

    def body(comm):
        for array in of_references:
            for call in (
                lambda: comm.isend(array, 0), lambda: comm.irecv(array, 0), lambda: comm.irecv(array),
                lambda: comm.send(array, 1), lambda: comm.recv(array, 1), lambda: comm.broadcast(array),
                lambda: comm.all_reduce(array), lambda: comm.all_gather(array, array), lambda: comm.scan(array),
                lambda: comm.all_to_all(array, array), lambda: comm.gather(array, array, comm.rank),
                lambda: comm.all_gather_v(array, array, [2, 0]), lambda: comm.scatter_v(array, [2, 0], array, comm.rank),
            ):  # fmt: skip
                with pytest.raises(errors.InvalidUsage, match=f"rank {comm.rank} in .*(references|no numbers)"):
                    call()
        records = numpy.zeros(2, dtype=[("number", "i4"), ("share", "f8")])
        if comm.rank == 0:
            records["share"] = 0.5
            comm.isend(records, 1).wait(20)
        else:
            comm.irecv(records, 0).wait(20)
        return records["share"].tolist()

    assert threads(2, body) == [[0.5, 0.5]] * 2


def test_masked_arrays_are_refused(threads):
    def body(comm):
        masked = numpy.ma.masked_greater(numpy.ones(3), 0)
        for call in (
            lambda: comm.all_reduce(masked), lambda: comm.all_reduce(masked, output=numpy.ones(3)),
            lambda: comm.all_reduce(numpy.ones(3), output=masked), lambda: comm.isend(masked, 0),
        ):  # fmt: skip
            with pytest.raises(errors.InvalidUsage, match="masked"):
                call()
        comm.all_reduce(masked.filled(2), output=(output := numpy.zeros(3)))
        return output.tolist()

    assert threads(1, body) == [[2.0] * 3]


def test_different_types_are_a_mismatch_on_both_ranks(threads):
    """Bytes of one type are not read as elements of another one of the same size."""

    def send(comm, array):
        comm.send(array, 1) if comm.rank == 0 else comm.recv(array, 0)

    calls = {
        "send": send,
        "all_gather_v": lambda comm, array: comm.all_gather_v(array[:2], array, [2, 2]),
        "all_to_all_v": lambda comm, array: comm.all_to_all_v(array.copy(), [2, 2], array, [2, 2]),
        "gather_v": lambda comm, array: comm.gather_v(array[:2], array if comm.rank == 0 else None, [2, 2]),
        "scatter_v": lambda comm, array: comm.scatter_v(array if comm.rank == 0 else None, [2, 2], array[:2].copy()),
    }

    def body(comm, call):
        call(comm, numpy.zeros(4, "float32"))
        with pytest.raises(errors.Mismatch, match="float"):
            call(comm, numpy.zeros(4, "float32" if comm.rank == 0 else "int32"))
            comm.barrier()

    for call in calls.values():
        threads(2, lambda comm, call=call: body(comm, call))


def test_uneven_collectives_carry_every_type(threads):
    def body(comm):
        for dtype in ("uint8", "int16", "float32", "complex128"):
            own, counts = numpy.arange(comm.rank + 1).astype(dtype), [1, 2, 3]
            comm.all_gather_v(own, everything := numpy.zeros(6, dtype), counts)
            assert everything.real.tolist() == [0, 0, 1, 0, 1, 2]
            gathered = numpy.zeros(6, dtype) if comm.rank == 1 else None
            comm.gather_v(own, gathered, counts, 1)
            assert gathered is None or (gathered == everything).all()
            comm.scatter_v(gathered, counts, back := numpy.zeros(comm.rank + 1, dtype), 1)
            assert (back == own).all()
            comm.all_to_all_v(everything[:3].copy(), [1] * 3, exchanged := numpy.zeros(3, dtype), [1] * 3)
            assert exchanged.real.tolist() == [everything[comm.rank].real] * 3

    threads(3, body)
