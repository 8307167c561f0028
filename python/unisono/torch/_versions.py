"""Differences between versions of torch."""

from torch._C._distributed_c10d import Backend

# A Python class can be a backend since torch calls the methods of such a class. Before that, it can
# only be the whole group.
HAS_BACKENDS = hasattr(Backend, "supports_coalescing") and hasattr(Backend, "resume")
