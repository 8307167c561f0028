"""Process groups for versions of torch in which no Python class can be a backend.

torch's C++ code also calls the methods of such a group, for example for DistributedDataParallel.
"""

import torch
from torch._C._distributed_c10d import ProcessGroup

from unisono.torch._profile import of_cpu_alone

_CALLS = [
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "send", "recv", "recv_anysource",
    "barrier", "monitored_barrier", "abort", "shutdown", "_set_default_timeout",
    "_set_sequence_number_for_group", "_get_sequence_number_for_group",
]  # fmt: skip


class PlainBackend:
    """A substitute for torch's class `Backend`, for versions in which no Python class can be a backend."""

    def __init__(self, rank, size):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


class WholeGroup(ProcessGroup):
    """A group that forwards every call to an object with the methods of a backend."""

    def __init__(self, backend):
        super().__init__(backend.rank(), backend.size())
        self._unisono, self._group_name, self._group_description = backend, "", ""

    # torch keeps names in the backends of a group, but this group has no backends.
    def _set_group_name(self, name):
        self._group_name = name

    @property
    def group_name(self):
        return self._group_name

    def _set_group_desc(self, description):
        self._group_description = description

    @property
    def group_desc(self):
        return self._group_description

    def getGroupName(self):
        return self._group_name

    def getGroupDesc(self):
        return self._group_description

    def getBackendName(self):
        return self._unisono.getBackendName()

    name = getBackendName
    _get_backend_name = of_cpu_alone

    def _get_backend(self, device):
        return self._unisono

    @property
    def _device_types(self):
        return [torch.device("cpu")]


def _forwarded(name):
    def method(self, *arguments, **named):
        return getattr(self._unisono, name)(*arguments, **named)

    method.__name__ = name
    return method


for _name in _CALLS:
    setattr(WholeGroup, _name, _forwarded(_name))
