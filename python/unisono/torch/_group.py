"""Process groups whose only backend is unisono.

torch wraps the work of a Python backend in an object that has neither ``is_completed`` nor ``result``. The group
therefore returns the backend's own work, after torch has dispatched the call through its hooks, profiler and flight
recorder.
"""

from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroup

from unisono.errors import InvalidUsage
from unisono.torch._backend import UnisonoBackend
from unisono.torch._profile import of_cpu_alone

_CALLS = [
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "allgather_coalesced",
    "gather", "scatter", "reduce_scatter", "alltoall", "send", "recv", "recv_anysource",
    "barrier",
]  # fmt: skip
# Calls that torch renamed. Its trampoline looks for both names, so only one of them may be overridden.
_RENAMED = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "gather_single": "gather_into_tensor",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


# Calls whose first argument receives results. Calls with lists of lists are not here, because torch copies none of
# their tensors.
_WRITING = {*_CALLS, *_RENAMED, *_RENAMED.values()} - {"send", "barrier", "allgather", "allgather_coalesced", "gather"}


class UnisonoGroup(ProcessGroup):
    """A group whose only backend is unisono."""

    # The number of times that the group was split. Names of its parts contain it.
    _splits = 0

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

    def _start_coalescing(self, device):
        self._unisono.start_coalescing()

    def _end_coalescing(self, device):
        return self._unisono.end_coalescing()

    def split_group(self, new_ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None):
        """Returns the group of some of the ranks, or None on the other ranks. All ranks call it."""
        name = group_name or f"{self.group_name}:split:{new_ranks}"
        store = PrefixStore(f"{name}/", self.get_group_store().clone())
        timeout = timeout or self._unisono.options._timeout
        description = group_desc or f"{self.group_desc}:split:{self._splits}"
        self._splits += 1
        return _named(self._unisono.part(store, new_ranks, name, timeout, opts), name, description)

    def merge_remote_group(self, store, size, timeout=timedelta(minutes=30), group_name=None, group_desc=None):
        """Returns one group of the ranks of several groups, which meet through a store."""
        name = group_name or f"{self.group_name}:merge"
        rank = store.add("mergeGroupRank", 1) - 1
        options = self._unisono.options
        options.group_name, options._timeout = name, timeout
        return _named(self._unisono.merge(store, options, rank, size), name, group_desc or name)


class ChangingGroup(UnisonoGroup):
    """A group whose ranks change with `reconfigure`, so every method that returns them calls the backend."""

    supports_reconfigure = True

    def rank(self):
        return self._unisono.rank()

    def size(self):
        return self._unisono.size()

    getRank, getSize = rank, size

    def get_reconfigure_handle(self):
        return self._unisono.get_reconfigure_handle()

    def reconfigure(self, opts):
        return self._unisono.reconfigure(opts)


def _named(backend, name, description):
    if backend is None:
        return None
    group = UnisonoGroup(backend, backend.store)
    group._set_group_name(name)
    group._set_group_desc(description)
    return group


def _check_results(group, name, results):
    """Refuses views whose results would be lost, because torch passes on copies of them."""
    for tensor in results if isinstance(results, (list, tuple)) else (results,):
        if tensor.is_neg() or tensor.is_conj():
            kind, remedy = ("negative", "resolve_neg") if tensor.is_neg() else ("conjugate", "resolve_conj")
            raise InvalidUsage(
                f"rank {group.rank()} in {name}: the tensor of the result is a {kind} view, which torch copies before "
                f"the call, so that the result would be lost; pass tensor.{remedy}(); nothing was sent"
            )


def _call(name):
    """Returns a method that calls torch's method, and returns the work of the backend."""
    of_torch, has_results = getattr(ProcessGroup, name), name in _WRITING

    def method(self, *arguments, **named):
        if has_results and arguments:
            _check_results(self, name, arguments[0])
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


def tell_sources():
    """Makes receives of any source return the source in groups of several backends. Further calls do nothing.

    torch makes such a group itself, and wraps the work of a Python backend in a work that does not know the source. So
    the group's method returns the work of this backend, if torch has called this backend.
    """
    of_torch = ProcessGroup.recv_anysource
    if hasattr(of_torch, "of_unisono"):
        return

    def recv_anysource(self, *arguments, **named):
        last = UnisonoBackend.last_work
        last.work = None
        returned = of_torch(self, *arguments, **named)
        work, last.work = last.work, None
        return returned if work is None else work

    recv_anysource.__doc__, recv_anysource.of_unisono = of_torch.__doc__, True
    ProcessGroup.recv_anysource = recv_anysource
