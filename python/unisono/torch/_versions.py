"""Differences between versions of torch."""

from torch._C._distributed_c10d import Backend

# True if torch calls the methods of a Python class that is a backend. In older versions, a Python class can only be the
# whole group.
HAS_BACKENDS = hasattr(Backend, "supports_coalescing") and hasattr(Backend, "resume")
