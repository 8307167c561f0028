"""Sends and receives."""

from unisono import _native
from unisono.errors import Unsupported
from unisono.torch._tensors import Staged, check_dense, parts


class Exchanges:
    """Point-to-point operations of a backend."""

    def send(self, tensors, rank, tag):
        check_dense(tensors, "send")
        sources = [Staged().input(tensor) for tensor in tensors]
        return self._start("send", [_native.Operation.send(parts(sources), rank)], tensors, tensors, keep=sources)

    def recv(self, tensors, rank, tag):
        check_dense(tensors, "recv")
        staged = Staged()
        targets = [staged.output(tensor) for tensor in tensors]
        return self._start(
            "recv", [_native.Operation.recv(parts(targets), rank)], tensors, tensors, None, staged.finish, targets
        )

    def recv_anysource(self, tensors, tag):
        raise Unsupported("this version receives from a rank that is named; pass `src`")
