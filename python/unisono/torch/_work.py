"""Work objects, which are handles of operations for which torch and its users wait."""

import sys
import threading
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work as WorkBase

from unisono.errors import Error, Timeout, _name_types

# The last Python function before torch runs the backward pass in C++.
_BACKWARD = torch.autograd.graph._engine_run_backward.__code__


class UnisonoWork(WorkBase):
    """A handle of an operation.

    Args:
        native: The handle of the native operation, or None if it has ended.
        result: The tensors that the operation filled.
        finish: The function to call once after the native operation, or None.
        error: The exception of an operation that has failed already.
        waits_for: Returns text that says which rank the operation waits for, or None.
        source: Returns the rank from which a receive came.
        explain: Returns the error of the native operation with facts that the caller adds.
        limit: The seconds after which a wait without a timeout ends, or None if only the native operation limits it.
    """

    def __init__(
        self, native, result, finish=None, error=None, waits_for=None, source=None, explain=None, limit=None
    ):  # fmt: skip
        super().__init__()
        self._limit = limit
        self._native, self._result, self._finish = native, list(result), finish
        self._error, self._waits_for, self._source = _in_terms_of_torch(_without_frames(error)), waits_for, source
        self._is_told, self._explain = False, explain
        self._lock, self._future = threading.Lock(), None
        if native is None and error is None and finish is not None:
            self._complete()

    def wait(self, timeout=timedelta(0)):
        """Waits until the operation has ended, but not longer than the timeout. Raises its error."""
        if self._native is not None:
            self._wait_for_native(timeout)
        self._complete()
        if self._error is not None:
            self._is_told = True
            raise self._error
        return True

    def _wait_for_native(self, timeout):
        is_limited = timeout > timedelta(0)
        limit = timeout.total_seconds() if is_limited else self._limit
        try:
            self._native.wait(limit)
        except Error as error:
            if self._native.is_finished():
                error = self._explained(error)
            elif isinstance(error, Timeout) and self._waits_for is not None:
                # Programs search for torch's words.
                whose = "" if is_limited else f"; it timed out: the timeout of the group is {limit} s"
                error.args = (f"{error} ({self._waits_for()}{whose})",)
            raise _in_terms_of_torch(error)

    def _explained(self, error):
        return error if error is None or self._explain is None else self._explain(error)

    def is_completed(self):
        """Returns true if the operation has succeeded or failed."""
        if self._native is not None and not self._native.is_finished():
            return False
        self._complete()
        return True

    def is_success(self):
        """Returns true if the operation has succeeded."""
        return self.is_completed() and not self._has_failed()

    def exception(self):
        """Returns the exception of an operation that has failed, or else None."""
        error = self._error or (self._explained(self._native.exception()) if self._native is not None else None)
        self._is_told |= error is not None
        return _in_terms_of_torch(error)

    def result(self):
        """Returns the tensors that the operation filled."""
        return self._result

    def synchronize(self):
        """Does nothing, because after ``wait`` the tensors hold the result."""

    def source_rank(self):
        """Returns the rank from which a receive of any source got its message."""
        if self._source is None:
            raise RuntimeError("source_rank() is for receives of any source")
        return self._source()

    _source_rank = source_rank

    def get_future(self):
        """Returns a future of the tensors, which completes when the operation has ended."""
        if self._is_for_hook_of_halves(sys._getframe().f_back):
            self.wait()
            return torch._C.fork(lambda: self._result)
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = torch.futures.Future()
        if self._native is None:
            self._resolve()
        else:
            self._native.add_done_callback(self._resolve)
        return self._future

    def _is_for_hook_of_halves(self, caller):
        """Returns true if DistributedDataParallel asks from C++ for the future of 16-bit floats.

        Its built-in hook accepts only a future with a C++ list, which Python cannot complete later. So a model with
        such floats waits here for each bucket. It would do so without the hook, too.
        """
        is_of_halves = bool(self._result) and self._result[0].dtype is torch.float16
        return is_of_halves and (caller is None or caller.f_code is _BACKWARD)

    def _resolve(self):
        self._complete()
        error = self.exception()
        if error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(error)

    def _complete(self):
        """Calls ``finish`` after the native operation, but only once."""
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is None or self._has_failed():
                return
            try:
                finish()
            except (Error, RuntimeError, TypeError, ValueError) as error:
                self._error = _without_frames(error)

    def _has_failed(self):
        """Returns true if the operation has failed. Unlike ``exception``, it does not report it to the user."""
        return self._error is not None or (self._native is not None and self._native.has_failed())

    def __del__(self):
        # Exceptions that are raised here go to sys.unraisablehook. The native handle reports its own error.
        if getattr(self, "_error", None) is not None and not self._is_told:
            raise self._error


def _in_terms_of_torch(error):
    """Returns an exception whose text names element types as torch does, such as `torch.float16`."""
    return _name_types(error, "torch.") if isinstance(error, Error) else error


def _without_frames(error):
    """Returns an exception without its traceback, because the frames of the traceback refer to the work.

    Torch refers to the work from C++, which the garbage collector does not see, so the work would never be freed.
    """
    return error if error is None else error.with_traceback(None)
