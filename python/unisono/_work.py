"""Handles of started operations."""

from unisono.errors import InvalidUsage


class Work:
    """A handle of an operation that runs in the background.

    Dropping the handle does not stop the operation.
    """

    def __init__(self, native, result=None):
        self._native, self._result = native, result

    def wait(self, timeout=None):
        """Waits until the operation has ended, and returns its output.

        Args:
            timeout: Seconds to wait at most. The operation goes on after that.

        Raises:
            Timeout: The operation has not ended within ``timeout``.
            Error: The operation failed.
        """
        self._native.wait(timeout)
        return self._result

    def is_finished(self):
        """Returns true if ``wait`` would return at once."""
        return self._native.is_finished()

    def exception(self):
        """Returns the exception of the operation, or None if it runs or has succeeded."""
        return self._native.exception()

    def add_done_callback(self, callback):
        """Calls ``callback(work)`` on another thread when the operation has ended.

        If the operation has ended already, this thread calls it at once.
        """
        self._native.add_done_callback(lambda: callback(self))


class Message(Work):
    """A handle of a receive. After ``wait``, it has the source, tag and length of the message."""

    @property
    def source(self):
        """The rank that sent the message."""
        return self._info()[0]

    @property
    def tag(self):
        """The tag of the message."""
        return self._info()[1]

    @property
    def bytes(self):
        """The length of the message, which may be shorter than the buffer."""
        return self._info()[2]

    def _info(self):
        info = self._native.message()
        if info is None:
            raise self.exception() or InvalidUsage("no message has arrived yet; call wait first")
        return info
