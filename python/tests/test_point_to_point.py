"""Sends and receives together, and communicators made from others."""

import threading

import numpy
import pytest

import unisono
from unisono import errors

LARGE = 100000


def test_all_ranks_may_send_first(threads):
    def body(comm):
        to, source = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        got = comm.send_recv(numpy.full(LARGE, comm.rank), to, numpy.zeros(LARGE, dtype=int), source)
        later = numpy.zeros(2, dtype="float32")
        work = comm.send_recv(numpy.full(2, comm.rank, dtype="float32"), to, later, source, async_op=True)
        assert work.wait(20) is later
        return set(got.tolist()) == {source} and set(later.tolist()) == {source}

    assert threads(3, body) == [True] * 3


def test_group_sends_to_all_ranks_and_to_itself(threads):
    def body(comm):
        real, whole = numpy.zeros((3, 4)), numpy.zeros((3, 2), dtype="uint8")
        mine = numpy.full(4, comm.rank + 0.5), numpy.full(2, comm.rank, dtype="uint8")
        sends = [(part, peer) for peer in range(3) for part in mine]
        recvs = [(part, peer) for peer in range(3) for part in (real[peer], whole[peer])]
        assert len(comm.group(sends, recvs)) == 6
        assert comm.group() == []
        return real[:, 3].tolist(), whole[:, 1].tolist()

    assert threads(3, body) == [([0.5, 1.5, 2.5], [0, 1, 2])] * 3


def test_impossible_sends_and_receives_are_refused(threads):
    def body(comm):
        values, other = numpy.zeros(4), 1 - comm.rank
        with pytest.raises(errors.InvalidUsage, match="overlaps another buffer"):
            comm.send_recv(values[:3], other, values[2:], other)
        with pytest.raises(errors.InvalidUsage, match="overlaps another buffer"):
            comm.group(recvs=[(values[:3], other), (values[2:], other)])
        with pytest.raises(errors.InvalidUsage, match="same group"):
            comm.group([(values, comm.rank)])
        with pytest.raises(errors.InvalidUsage, match="peer is 2, not a whole number from 0 to 1"):
            comm.group([(values, 2)])
        with pytest.raises(errors.InvalidUsage, match="references"):
            comm.group([(numpy.array([None]), other)])
        comm.barrier()

    threads(2, body)


def test_duplicates_and_groups_of_members_are_made(threads):
    def body(comm):
        with comm.duplicate() as second:
            assert (second.rank, second.size) == (comm.rank, 3)
            second.barrier()
        if comm.rank == 1:
            with pytest.raises(errors.InvalidUsage, match="none of them"):
                comm.create_group([2, 0])
            return None
        with comm.create_group([2, 0], tag=7) as pair:
            total = numpy.array([comm.rank])
            pair.all_reduce(total)
            return pair.rank, pair.size, int(total[0])

    assert threads(3, body) == [(1, 2, 2), None, (0, 2, 2)]


def test_newcomer_joins_a_grown_communicator(threads):
    first, second = unisono.unique_id(), unisono.unique_id()
    joined = []

    def join_later():
        with unisono.Communicator.join(second, 1, 2) as comm:
            joined.append(comm.rank)
            comm.barrier()

    newcomer = threading.Thread(target=join_later)
    with unisono.Communicator.join(first, 0, 1) as comm:
        newcomer.start()
        with comm.grow(second, 1) as larger:
            assert larger.size == 2
            larger.barrier()
            newcomer.join()
    assert joined == [1]

    def body(comm):
        with pytest.raises(errors.Unsupported, match="nobody can join"):
            comm.grow(unisono.unique_id(), 1)

    threads(2, body)
