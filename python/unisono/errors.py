"""Exceptions, one class for each kind of error.

Every exception has the attribute ``code``, which is a number that never changes its meaning. Its
text names the rank, the operation, the values that differ, and what to do next.
"""

import re


class Error(RuntimeError):
    """An error of the library.

    Attributes:
        code: The number of the kind of error.
        rank: The rank that reports the error, or None.
        peer: The other rank that the error is about, or None.
        operation: The operation in which the error was seen, or None.
        help: A sentence that says what to do next.
        is_poisoning: True if every later call on the communicator raises the same error.
        is_recoverable: True if the ranks that are left can go on with ``shrink``, which leaves out
            the rank that failed, left or is silent. False for errors that would come again, such as
            a mismatch. If a shrink leaves no rank out, it has not removed the cause either, so a
            recovery loop must end then.

    After ``InvalidUsage`` and ``Unsupported``, all buffers are unchanged. After any other error of
    an operation, its output is unspecified: parts may be as before, final, or partly reduced. An
    input that is not also the output is unchanged. So never repeat an operation in place on the
    same buffer. Some ranks may have completed an operation in which others failed.
    """

    code = 0
    rank = None
    peer = None
    operation = None
    help = ""
    is_poisoning = False
    is_recoverable = False


class InvalidUsage(Error, ValueError):
    """The call or a setting was refused. Nothing was sent."""

    code = 1


class Unsupported(Error, NotImplementedError):
    """The feature is not part of this build, or is not possible over this transport."""

    code = 2


class BootstrapError(Error):
    """The ranks could not connect to each other."""

    code = 3


class Mismatch(Error):
    """Two ranks called different operations at the same position of their sequences."""

    code = 4


class CountMismatch(Error):
    """Two ranks give different lengths for one message of an uneven collective."""

    code = 5


class PeerFailed(Error):
    """A rank died, or its connection was lost."""

    code = 6


class PeerFinalized(Error):
    """A rank dropped its communicator while other ranks still needed it, and no related one of that rank had failed."""

    code = 7


class Timeout(Error):
    """No data moved for as long as the timeout allows."""

    code = 8


class Aborted(Error):
    """A rank ended the communicator for all ranks: it failed, shrinks, or called ``abort``.

    The kind is also used if a rank left the communicator after a related one of that rank had failed. The text tells
    that failure.
    """

    code = 9


class Excluded(Error):
    """The other ranks shrank the communicator without this rank."""

    code = 10


class ProtocolViolation(Error):
    """A rank sent data that a rank of this version never sends."""

    code = 11


class NotFinite(Error):
    """A rank gave a NaN or an infinity while the setting ``check_finite`` is on."""

    code = 12


class SystemFailure(Error):
    """A system call failed."""

    code = 13


class GpuFailure(Error):
    """A GPU or its driver failed."""

    code = 14


class Bug(Error):
    """A defect of this library. Please report it."""

    code = 15


class ObjectError(Error):
    """An object of a collective of objects could not be written or read."""

    code = 16


class MessageTimeout(Timeout):
    """A message with a tag did not move for as long as the timeout allows."""

    code = 17


class BarrierTimeout(Timeout):
    """Ranks did not come to a barrier in time.

    Attributes:
        missing: The ranks that did not come.
    """

    code = 18
    missing = ()


_CLASSES = {kind.code: kind for kind in [*Error.__subclasses__(), *Timeout.__subclasses__()]}


def _make(code, text, facts):
    """Returns the exception for a code. For an unknown code, returns ``Error``."""
    error = _CLASSES.get(code, Error)(text)
    error.code = code
    for name, value in facts.items():
        setattr(error, name, value)
    return _name_types(error)


# Names of element types in NumPy and torch, by the names in texts of the library, if these differ.
_TYPE_NAMES = {
    "half": "float16", "float": "float32", "double": "float64",
    "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
}  # fmt: skip
# Finds names of types. A name follows a number of elements, a digest of counts, or certain words.
_TYPE = re.compile(
    r"(\b\d+ x |digest [0-9a-f]+ of |not defined for |elements of |, not of |, as )"
    r"(half|double|b?float(?:16|32|64)?|fp8_e4m3|fp8_e5m2|float8_e4m3fn|float8_e5m2|u?int\d+|bool|complex\d+)\b"
)


def _name_types(error, prefix=""):
    """Replaces the names of element types in the texts of an error by ``prefix`` and their Python names."""
    error.args = tuple(_with_type_names(text, prefix) if isinstance(text, str) else text for text in error.args)
    if error.operation is not None:
        error.operation = _with_type_names(error.operation, prefix)
    return error


def _with_type_names(text, prefix=""):
    """Returns a text of the library in which element types have their Python names."""
    return _TYPE.sub(lambda found: found[1] + prefix + _TYPE_NAMES.get(found[2], found[2]), text)
