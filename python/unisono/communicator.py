"""Communicators for arrays."""

import json
import operator

from unisono import _native
from unisono._memory import SIZES, memory_of
from unisono._work import Message, Work
from unisono.errors import InvalidUsage


def unique_id(interface="127.0.0.1"):
    """Returns a new unique id as text, for all ranks of one bootstrap.

    The text holds the secret of the ranks, so send it in a way that nobody else can read or change.

    Args:
        interface: The IP address at which rank 0 listens.
    """
    return _native.unique_id(interface)


class Communicator:
    """A group of ranks that carry out collective operations together.

    Every rank calls the same operations in the same order. Arrays can be NumPy arrays, CPU tensors
    of torch, and other objects with the buffer protocol. Inputs can also be objects that support
    DLPack. Arrays must be contiguous, and nobody else may access them during the operation.

    Every collective is a method that returns when this rank's part is done. With ``async_op=True``
    it returns a ``Work`` at once. The input may be this rank's share of the output, and the output
    may be this rank's share of the input.

    A forked process cannot use the communicators of its parent.
    """

    def __init__(self, native):
        self._native = native

    @classmethod
    def from_env(cls, **settings):
        """Connects to the other ranks with the settings that the launcher put into the environment.

        The launcher is ``unisono run``, or torchrun with ``UNISONO_SECRET``.

        Args:
            settings: Settings by name, such as ``timeout_ms=500``.
        """
        return cls(_native.Communicator.from_env(_texts(settings)))

    @classmethod
    def join(cls, unique_id, rank, size, settings=None):
        """Connects rank ``rank`` to the other ``size - 1`` ranks.

        Args:
            unique_id: The text that ``unisono.unique_id`` returned, the same on all ranks.
            settings: Settings by name, such as ``{"timeout_ms": 500}``.
        """
        return cls(_native.Communicator.join(str(unique_id), rank, size, _texts(settings or {})))

    @classmethod
    def local(cls, size, **settings):
        """Returns the communicators of ``size`` threads of this process, by rank."""
        return [cls(native) for native in _native.Communicator.local(size, _texts(settings))]

    @property
    def rank(self):
        """The number of this rank, from 0."""
        return self._native.rank

    @property
    def size(self):
        """The number of ranks."""
        return self._native.size

    @property
    def transport(self):
        """The name of the transport, such as ``shm``."""
        return self._native.transport

    def __repr__(self):
        return f"<unisono.Communicator rank {self.rank} of {self.size}>"

    def all_reduce(self, buffer, op="sum", *, output=None, factor=None, async_op=False):
        """Combines the buffers of all ranks, in place or into ``output``.

        After an error, ``output``, or ``buffer`` in place, is unspecified.

        Args:
            op: ``sum``, ``prod``, ``min``, ``max``, ``avg``, ``pre_mul_sum``, ``bitand``, ``bitor`` or
                ``bitxor``. For bools, the last three are the logical operators.
            factor: The factor of this rank for ``pre_mul_sum``.
        """
        output = buffer if output is None else output
        return self._even("all_reduce", buffer, output, async_op, (op, factor))

    def reduce(self, buffer, op="sum", root=0, *, output=None, factor=None, async_op=False):
        """Combines the buffers of all ranks into the output of the root.

        After an error, ``output``, or ``buffer`` in place, is unspecified.
        """
        output = buffer if output is None else output
        return self._even("reduce", buffer, output, async_op, (op, factor), root)

    def broadcast(self, buffer, root=0, *, async_op=False):
        """Copies the buffer of the root to all ranks.

        After an error, ``buffer`` is unspecified.
        """
        return self._even("broadcast", buffer, buffer, async_op, None, root)

    def all_gather(self, input, output, *, async_op=False):
        """Writes the inputs of all ranks into ``output``, by rank.

        After an error, ``output`` is unspecified.
        """
        return self._even("all_gather", input, output, async_op)

    def reduce_scatter(self, input, output, op="sum", *, factor=None, async_op=False):
        """Combines the inputs of all ranks, and writes this rank's share into ``output``.

        After an error, ``output`` is unspecified.
        """
        return self._even("reduce_scatter", input, output, async_op, (op, factor))

    def all_to_all(self, input, output, *, async_op=False):
        """Sends share i of ``input`` to rank i, and receives shares into ``output``, by sender.

        After an error, ``output`` is unspecified.
        """
        return self._even("all_to_all", input, output, async_op)

    def gather(self, input, output=None, root=0, *, async_op=False):
        """Writes the inputs of all ranks into the output of the root, by rank.

        After an error, ``output`` is unspecified.
        """
        return self._even("gather", input, output, async_op, None, root)

    def scatter(self, input, output, root=0, *, async_op=False):
        """Writes share i of the root's input into the output of rank i.

        After an error, ``output`` is unspecified.
        """
        return self._even("scatter", input, output, async_op, None, root)

    def all_gather_v(self, input, output, counts, *, async_op=False):
        """Gathers ``counts[i]`` elements of every rank i into ``output``, by rank.

        After an error, ``output`` is unspecified.
        """
        source, target = self._both("all_gather_v", input, output)
        sizes = self._bytes("all_gather_v", counts, source)
        step = _native.Operation.all_gather_v(source.parts, target.parts, sizes, source.dtype)
        return self._run(step, (source, target), output, async_op)

    def reduce_scatter_v(self, input, output, counts, op="sum", *, factor=None, async_op=False):
        """Combines the inputs of all ranks, and writes ``counts[i]`` elements into the output of rank i.

        After an error, ``output`` is unspecified.
        """
        source, target = self._both("reduce_scatter_v", input, output)
        numbers = self._counts("reduce_scatter_v", counts)
        step = _native.Operation.reduce_scatter_v(source.dtype, source.parts, target.parts, numbers, (op, factor))
        return self._run(step, (source, target), output, async_op)

    def all_to_all_v(self, input, send_counts, output, recv_counts, *, async_op=False):
        """Sends ``send_counts[i]`` elements to rank i, and receives ``recv_counts[i]`` from it.

        After an error, ``output`` is unspecified.
        """
        source, target = self._both("all_to_all_v", input, output)
        sends = self._bytes("all_to_all_v", send_counts, source)
        receives = self._bytes("all_to_all_v", recv_counts, source)
        step = _native.Operation.all_to_all_v(source.parts, target.parts, sends, receives, source.dtype)
        return self._run(step, (source, target), output, async_op)

    def gather_v(self, input, output=None, counts=None, root=0, *, async_op=False):
        """Writes the inputs of all ranks into the output of the root, by rank.

        Only the root gives ``output`` and ``counts``, where ``counts[i]`` elements come from rank
        i.

        After an error, ``output`` is unspecified.
        """
        root = self._peer("gather_v", "root", root)
        if self.rank == root:
            source, target = self._both("gather_v", input, output)
        else:
            source, target, counts = self._memory("gather_v", input, "input", False), None, []
        sizes = self._bytes("gather_v", counts, source)
        step = _native.Operation.gather_v(source.parts, target.parts if target else [], sizes, root, source.dtype)
        return self._run(step, (source, target), output, async_op)

    def scatter_v(self, input, counts, output, root=0, *, async_op=False):
        """Writes ``counts[i]`` elements of the root's input into the output of rank i.

        Only the root gives ``input`` and ``counts``.

        After an error, ``output`` is unspecified.
        """
        root = self._peer("scatter_v", "root", root)
        if self.rank == root:
            source, target = self._both("scatter_v", input, output)
        else:
            source, target, counts = None, self._memory("scatter_v", output, "output", True), []
        sizes = self._bytes("scatter_v", counts, target)
        step = _native.Operation.scatter_v(source.parts if source else [], target.parts, sizes, root, target.dtype)
        return self._run(step, (source, target), output, async_op)

    def scan(self, buffer, op="sum", *, output=None, factor=None, async_op=False):
        """Combines the buffers of this rank and all ranks below it, in place or into ``output``.

        After an error, ``output``, or ``buffer`` in place, is unspecified.
        """
        output = buffer if output is None else output
        return self._even("scan", buffer, output, async_op, (op, factor))

    def exscan(self, buffer, op="sum", *, output=None, factor=None, async_op=False):
        """Combines the buffers of all ranks below this one, in place or into ``output``.

        The output of rank 0 does not change, because no rank is below it.

        After an error, ``output``, or ``buffer`` in place, is unspecified.
        """
        output = buffer if output is None else output
        return self._even("exscan", buffer, output, async_op, (op, factor))

    def send(self, buffer, peer, *, async_op=False):
        """Sends the buffer to ``peer``, which must receive as many elements of the same type."""
        source, peer = self._memory("send", buffer, "buffer", False), self._peer("send", "peer", peer)
        return self._run(_native.Operation.send(source.parts, peer, source.dtype), source, buffer, async_op)

    def recv(self, buffer, peer, *, async_op=False):
        """Receives the buffer from ``peer``, which must send as many elements of the same type.

        After an error, ``buffer`` is unspecified.
        """
        target, peer = self._memory("recv", buffer, "buffer", True), self._peer("recv", "peer", peer)
        return self._run(_native.Operation.recv(target.parts, peer, target.dtype), target, buffer, async_op)

    def send_recv(self, input, to, output, source, *, async_op=False):
        """Sends ``input`` to rank ``to`` and receives ``output`` from rank ``source``, concurrently.

        After an error, ``output`` is unspecified.
        """
        return self._together("send_recv", [(input, to)], [(output, source)], output, async_op)

    def group(self, sends=(), recvs=(), *, async_op=False):
        """Runs sends and receives concurrently, so that no order among them can deadlock.

        Sends and receives between the same two ranks keep their order. A rank may send to itself if
        the same group also has the receive. Returns the buffers of the receives. They must not
        overlap another buffer, and are unspecified after an error.

        Args:
            sends: Pairs of a buffer and the rank that receives it.
            recvs: Pairs of a buffer and the rank that sends it.
        """
        sends, recvs = list(sends), list(recvs)
        return self._together("group", sends, recvs, [buffer for buffer, _ in recvs], async_op)

    def isend(self, buffer, to, tag=0):
        """Starts to send the buffer to rank ``to`` under a tag, and returns a ``Work``.

        An ``irecv`` of that rank receives the message as bytes, in a buffer of any type. Messages
        progress at the same time as collectives and other messages. Arrays of objects are refused,
        because their elements are references.
        """
        source = self._memory("isend", buffer, "buffer", False)
        to, tag = self._peer("isend", "to", to), self._whole("isend", "tag", tag)
        return Work(self._native.isend(source.parts[0], to, tag, (source, buffer)), buffer)

    def irecv(self, buffer, source=None, tag=None):
        """Starts to receive a message, and returns a ``Message``, whose ``wait`` returns the buffer.

        After an error, ``buffer`` is unspecified.

        Args:
            source: The rank that sends, or None for any rank.
            tag: The tag, or None for any tag.
        """
        target = self._memory("irecv", buffer, "buffer", True)
        source, tag = self._message("irecv", source, tag)
        return Message(self._native.irecv(target.parts[0], source, tag, (target, buffer)), buffer)

    def probe(self, source=None, tag=None):
        """Returns (source, tag, bytes) of a message that no receive has taken, or None.

        The length is the one that the sender has announced. Compare it with the length that you
        expect before you allocate memory for the message.
        """
        return self._native.probe(*self._message("probe", source, tag))

    def barrier(self, *, async_op=False):
        """Returns when every rank has called this method."""
        step = _native.Operation.even("barrier", "uint8", [], [])
        return self._run(step, None, None, async_op)

    def barrier_timeout(self, timeout, *, async_op=False):
        """Returns when every rank has called it. Raises ``BarrierTimeout`` after ``timeout`` seconds.

        The attribute ``missing`` of the exception lists the ranks that did not come. The exception
        ends the communicator, and ``shrink`` makes one without these ranks.
        """
        return self._run(_native.Operation.barrier_timeout(timeout), None, None, async_op)

    def split(self, color, key=0, settings=None):
        """Makes a communicator of the ranks that give the same color, ordered by key and then by rank.

        Every rank must call this method. A rank whose color is None gets None.
        """
        settings = None if settings is None else _texts(settings)
        color = None if color is None else self._whole("split", "color", color, most=2**32 - 1)
        key = self._whole("split", "key", key, least=-(2**31), most=2**31 - 1)
        made = self._native.split(color, key, settings)
        return None if made is None else Communicator(made)

    def duplicate(self):
        """Returns another communicator of the same ranks.

        Its calls do not wait for calls on this one. Every rank must call this method.
        """
        return Communicator(self._native.duplicate())

    def create_group(self, members, tag=0):
        """Returns a communicator of the ranks in ``members``, in that order. Only members call this.

        All members give the same list and tag. Groups that are made at the same time need different
        tags if they share two ranks.
        """
        ranks = [self._peer("create_group", f"members[{place}]", rank) for place, rank in enumerate(members)]
        tag = self._whole("create_group", "tag", tag, most=2**32 - 1)
        return Communicator(self._native.create_group(ranks, tag))

    def grow(self, unique_id, newcomers):
        """Returns a communicator of these ranks, followed by ``newcomers`` new ranks.

        Every rank calls this method with the same unique id, whose address is on the host of rank
        0. Newcomer i calls ``join`` with that id as rank ``size + i`` of ``size + newcomers``. If
        newcomers do not come, the call raises an error, and this communicator stays usable.
        """
        newcomers = self._whole("grow", "newcomers", newcomers)
        return Communicator(self._native.grow(str(unique_id), newcomers))

    def shrink(self):
        """Returns a communicator of the ranks that are left after a failure.

        This helps if the attribute ``is_recoverable`` of the exception is true. Some ranks may have
        completed an operation in which others failed. ``shrink_and_agree`` lets the ranks agree on
        the step to continue from as well.
        """
        return Communicator(self._native.shrink())

    def shrink_and_agree(self, value):
        """Returns a communicator of the ranks that are left, and the smallest ``value`` of these ranks.

        The value is a whole number below 2**64, such as a training step or the number of a
        checkpoint. Ranks that get the same communicator get the same value. If a rank dies in this
        call, its value is taken into account either by all of them or by none. Every rank that is
        left must call this method or ``shrink``, which gives no value.
        """
        value = self._whole("shrink_and_agree", "value", value, most=2**64 - 1)
        left, smallest = self._native.shrink_and_agree(value)
        return Communicator(left), smallest

    def abort(self, reason="aborted by the application"):
        """Ends the operations of this communicator on all ranks, with an error."""
        self._native.abort(reason)

    def error(self):
        """Returns the exception that every later call raises, and None if calls still work."""
        return self._native.error()

    def flight_record(self):
        """Returns the last operations of this rank as a dictionary."""
        return json.loads(self._native.flight_record())

    def close(self):
        """Leaves the communicator. Later calls raise an error.

        A process that ends with exit code 0 leaves in the same way. If it ends in another way, the
        other ranks are told that this rank has failed.
        """
        self._native.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _even(self, collective, input, output, async_op, reduction=None, root=0):
        root = self._peer(collective, "root", root) if root else 0
        at_root = self.rank == root
        source = target = None
        if collective not in ("broadcast", "scatter") or at_root:
            source = self._memory(collective, input, "input", False)
        if collective not in ("reduce", "gather") or at_root:
            target = self._memory(collective, output, "output", True)
        if source is not None and target is not None:
            self._same_type(collective, source, target)
        step = _native.Operation.even(
            collective,
            (source or target).dtype,
            source.parts if source else [],
            target.parts if target else [],
            reduction,
            root,
        )
        return self._run(step, (source, target), output, async_op)

    def _both(self, call, input, output):
        source, target = self._memory(call, input, "input", False), self._memory(call, output, "output", True)
        self._same_type(call, source, target)
        return source, target

    def _together(self, call, sends, recvs, result, async_op):
        def described(pairs, name, writable):
            memories = [self._memory(call, buffer, name, writable) for buffer, _ in pairs]
            peers = [self._peer(call, "peer", peer) for _, peer in pairs]
            return [(memory.parts[0], memory.dtype, peer) for memory, peer in zip(memories, peers)], memories

        (sent, inputs), (received, outputs) = described(sends, "input", False), described(recvs, "output", True)
        return self._run(_native.Operation.group(sent, received), (inputs, outputs), result, async_op)

    def _memory(self, call, array, name, writable):
        try:
            return memory_of(array, name, writable)
        except InvalidUsage as reason:
            raise InvalidUsage(f"rank {self.rank} in {call}: {reason}") from reason.__cause__

    def _whole(self, call, name, value, least=0, most=2**63 - 1):
        """Returns a whole number within bounds, or raises an error that names it."""
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or not least <= number <= most:
            raise InvalidUsage(
                f"rank {self.rank} in {call}: {name} is {value!r}, not a whole number from {least} to {most}; "
                "correct the call"
            )
        return number

    def _peer(self, call, name, rank):
        return self._whole(call, name, rank, most=self.size - 1)

    def _message(self, call, source, tag):
        """Returns the source and the tag of a receive. None accepts every rank or every tag."""
        source = None if source is None else self._peer(call, "source", source)
        return source, None if tag is None else self._whole(call, "tag", tag)

    def _counts(self, call, counts, most=2**63 - 1):
        try:
            numbers = list(counts)
        except TypeError:
            raise InvalidUsage(
                f"rank {self.rank} in {call}: the counts are {counts!r}; give a number for each rank"
            ) from None
        return [self._whole(call, f"counts[{rank}]", number, most=most) for rank, number in enumerate(numbers)]

    def _bytes(self, call, counts, memory):
        size = SIZES.get(memory.dtype)
        if size is None:
            raise InvalidUsage(
                f"rank {self.rank} in {call}: elements of type `{memory.dtype}` cannot be carried; correct the call"
            )
        return [count * size for count in self._counts(call, counts, (2**63 - 1) // size)]

    def _same_type(self, collective, source, target):
        if source.dtype != target.dtype:
            raise InvalidUsage(
                f"rank {self.rank} in {collective}: the input has elements of {source.dtype}, the output of "
                f"{target.dtype}; give both the same type"
            )

    def _run(self, step, keep, result, async_op):
        if async_op:
            return Work(self._native.start([step], keep), result)
        self._native.run([step])
        return result


def _texts(settings):
    words = {True: "on", False: "off"}
    return {name: words[value] if isinstance(value, bool) else str(value) for name, value in settings.items()}
