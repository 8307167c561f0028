"""Calls of a backend in all forms that torch's C++ takes, such as one tensor in place of a list, or without options."""

import functools

from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    Backend,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

# The type of the last argument, by the name of the method, when torch calls a backend from C++.
_LAST = {
    "allreduce": AllreduceOptions,
    "allreduce_coalesced": AllreduceCoalescedOptions,
    "allreduce_sparse": AllreduceOptions,
    "broadcast": BroadcastOptions,
    "reduce": ReduceOptions,
    "gather": GatherOptions,
    "scatter": ScatterOptions,
    "barrier": BarrierOptions,
    "send": int,
    "recv": int,
    **dict.fromkeys(["allgather", "allgather_coalesced"], AllgatherOptions),
    **dict.fromkeys(["all_gather_single", "_allgather_base", "all_gather_single_coalesced"], AllgatherOptions),
    **dict.fromkeys(["reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"], ReduceScatterOptions),
    "reduce_scatter_single_coalesced": ReduceScatterOptions,
    **dict.fromkeys(["alltoall", "all_to_all_single", "alltoall_base"], AllToAllOptions),
}


def accept_all_forms(backend):
    """Lets a class of backends be called in all these forms, as torch's C++ backends can be."""
    for name, last in _LAST.items():
        if hasattr(Backend, name):
            setattr(backend, name, _in_any_form(name, getattr(backend, name), last))
    return backend


def _in_any_form(name, own, last):
    of_torch = getattr(Backend, name)

    @functools.wraps(own)
    def method(self, *arguments, **named):
        if named or not arguments or type(arguments[-1]) is not last:
            return self.own_work_of(of_torch, *arguments, **named)
        return own(self, *arguments)

    return method
