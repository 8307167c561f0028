"""Sends and receives, as messages with tags."""

from unisono.errors import CountMismatch, Error
from unisono.torch._coalescing import refused_at_the_end
from unisono.torch._profile import entry
from unisono.torch._tensors import Staged, parts
from unisono.torch._work import UnisonoWork


class Exchanges:
    """Point-to-point operations of a backend."""

    @refused_at_the_end
    def send(self, tensors, rank, tag):
        tensor, staged = self._one(tensors, "send", tag, rank)
        source = staged.input(tensor)
        start = lambda memory: self._comm.isend(memory, rank, tag, (tensor, source))  # noqa: E731
        return self._exchange("send", tensor, start, source, rank)

    @refused_at_the_end
    def recv(self, tensors, rank, tag):
        return self._receive("recv", tensors, rank, tag)

    @refused_at_the_end
    def recv_anysource(self, tensors, tag):
        work = self._receive("recvAnySource", tensors, None, tag)
        if self.is_one_of_several:
            self.last_work.work = work
        return work

    def _receive(self, title, tensors, rank, tag):
        tensor, staged = self._one(tensors, title, tag, rank)
        target = staged.output(tensor)
        start = lambda memory: self._comm.irecv(memory, rank, tag, (tensor, target))  # noqa: E731
        return self._exchange(title, tensor, start, target, rank, staged.finish)

    def _one(self, tensors, title, tag, peer):
        """Returns the tensor of a message, and the object that stages it."""
        staged = Staged(self._where(title), tensors)
        if len(tensors) != 1:
            raise self._refused(title, f"a message is one tensor, not {len(tensors)}")
        if tag < 0:
            raise self._refused(title, f"the tag is {tag}, where tags begin at 0")
        if peer is not None and not 0 <= peer < self._comm.size:
            raise self._refused(title, f"the peer is {peer}, where ranks are 0 to {self._comm.size - 1}")
        return tensors[0], staged

    def _exchange(self, title, tensor, start, usable, peer, copy_back=None):
        """Starts a message from or into the memory of a tensor. If ``peer`` is None, any rank may be the peer."""
        (memory,) = parts([usable])
        native = error = None
        with entry(title, [tensor]):
            try:
                native = start(memory)
            except Error as failure:
                error = failure

        def finish():
            received = native.message() if native is not None else None
            if received is not None and received[2] != memory[1]:
                source, tag, length = received
                raise CountMismatch(
                    f"rank {self.rank()} in {title}: rank {source} sent {length} bytes under tag {tag} where "
                    f"{memory[1]} were expected; give both ranks tensors of the same size"
                )
            if copy_back is not None:
                copy_back()

        source = lambda: native.message()[0]  # noqa: E731
        whom = "any rank" if peer is None else f"rank {peer}"
        waits_for = lambda: f"rank {self.rank()} in {title} waits for {whom}"  # noqa: E731
        explain = lambda failure: self._with_timeout(failure, None)  # noqa: E731
        # Messages have the timeout that the communicator was made with. A shorter one of `set_timeout` ends the wait.
        limit = self._seconds
        return self._returned(UnisonoWork(native, [tensor], finish, error, waits_for, source, explain, limit))
