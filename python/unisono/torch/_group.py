"""Process groups whose only backend is unisono.

torch wraps the work of a Python backend in an object that knows neither ``is_completed`` nor
``result``. The group therefore returns the backend's own work, after torch has dispatched the call
through its hooks, profiler and flight recorder.
"""

import torch
from torch._C._distributed_c10d import ProcessGroup

from unisono.torch._backend import UnisonoBackend
from unisono.torch._profile import of_cpu_alone

_CALLS = [
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "allgather_coalesced",
    "gather", "scatter", "reduce_scatter", "alltoall", "send", "recv", "recv_anysource",
    "barrier",
]  # fmt: skip
# Calls that torch renamed. Its trampoline asks for both names, so that only one may be overridden.
_RENAMED = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "gather_single": "gather_into_tensor",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


class UnisonoGroup(ProcessGroup):
    """A group whose only backend is unisono."""

    def __init__(self, backend, store):
        super().__init__(store, backend.rank(), backend.size())
        self._unisono = backend
        backend.hands_over_work = True
        kind = ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        self._register_backend(torch.device("cpu"), kind, backend)

    def getBackendName(self):
        return self._unisono.getBackendName()

    _get_backend_name = of_cpu_alone


def _call(name):
    """Returns a method that calls the one of torch, and returns the work of the backend."""
    of_torch = getattr(ProcessGroup, name)

    def method(self, *arguments, **named):
        last = UnisonoBackend.last_work
        last.work = None
        returned = of_torch(self, *arguments, **named)
        work, last.work = last.work, None
        return returned if work is None else work

    # torch's trampoline recognizes a call of the base method by the name of the calling code.
    method.__code__ = method.__code__.replace(co_name=name)
    method.__name__, method.__doc__ = name, of_torch.__doc__
    return method


for _new, _old in _RENAMED.items():
    _CALLS.append(_new if hasattr(ProcessGroup, _new) else _old)
for _name in _CALLS:
    if hasattr(ProcessGroup, _name):
        setattr(UnisonoGroup, _name, _call(_name))
