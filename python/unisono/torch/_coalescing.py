"""Groups of operations for which torch waits together."""

import functools
import time
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work as WorkBase

from unisono.errors import InvalidUsage
from unisono.torch._work import UnisonoWork


class Coalescing:
    """The start and the end of a group of operations. Each operation begins at once, as without a group."""

    supports_coalescing = True
    # The works of the operations since the start, and the error of a refused call. None outside of a group.
    _together = _refusal = None

    def start_coalescing(self):
        """Collects the work of later operations until `end_coalescing`."""
        self._together, self._refusal = [], None

    def end_coalescing(self):
        """Returns one work for all operations since the start, or raises the error of a refused one."""
        works, self._together = self._together or [], None
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        return works[0] if len(works) == 1 else UnitedWork(works)


def refused_at_the_end(method):
    """Returns a method that, inside a group of operations, raises the error of a refused call at the end of the group.

    torch keeps a group of operations open forever if one of them raises, and drops all later collectives.
    """

    @functools.wraps(method)
    def checked(self, *arguments):
        try:
            return method(self, *arguments)
        except InvalidUsage as error:
            if self._together is None:
                raise
            self._refusal = self._refusal or error
            return UnisonoWork(None, [])

    return checked


class UnitedWork(WorkBase):
    """A handle of several operations, which has ended when all of them have."""

    def __init__(self, works):
        super().__init__()
        self._works, self._future = works, None

    def wait(self, timeout=timedelta(0)):
        """Waits until all operations have ended, but not longer than the timeout. Raises the first error."""
        deadline = time.monotonic() + timeout.total_seconds() if timeout > timedelta(0) else None
        for work in self._works:
            left = timedelta(0) if deadline is None else timedelta(seconds=max(1e-3, deadline - time.monotonic()))
            work.wait(left)
        return True

    def is_completed(self):
        return all([work.is_completed() for work in self._works])

    def is_success(self):
        return all([work.is_success() for work in self._works])

    def exception(self):
        errors = [work.exception() for work in self._works]
        return next((error for error in errors if error is not None), None)

    def result(self):
        return [tensor for work in self._works for tensor in work.result()]

    def synchronize(self):
        """Does nothing, because after ``wait`` the tensors hold the result."""

    def get_future(self):
        """Returns a future of the tensors of all operations."""
        if self._future is None:
            futures = [work.get_future() for work in self._works]
            united = torch.futures.collect_all(futures) if futures else _ended([])
            self._future = united.then(lambda ended: [tensor for each in ended.value() for tensor in each.value()])
        return self._future


def _ended(value):
    future = torch.futures.Future()
    future.set_result(value)
    return future
