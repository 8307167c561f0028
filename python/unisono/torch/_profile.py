"""Entries of operations in torch's profiler, with the shapes of their tensors.

An entry lasts as long as the call: the whole operation if the caller waits for it, and the start of
it if it runs in the background. torch's profiler takes the end of an entry on another thread from
C++ alone.
"""

from contextlib import nullcontext

import torch

# The name in torch's C++. It is no other backend's, since DistributedDataParallel takes a backend
# with the name of Gloo for an object of the class of Gloo.
NAME = "unisono"


def of_cpu_alone(group):
    """Returns the name of Gloo, for which torch's Python asks to learn that all tensors of a group are on the CPU.

    Under another name, it asks for the current GPU: for the device of a sharded tensor of FSDP1 without local rows.
    """
    return "gloo"


_is_enabled = torch.autograd._profiler_enabled
_Record = getattr(torch._C._profiler, "_RecordFunctionFast", None)
# Returns the name that `record_comm` gives to calls, else "".
_name_of_user = getattr(torch._C._distributed_c10d, "_get_comm_profiling_name", str)


_NOTHING = nullcontext()


def entry(title, tensors):
    """Returns a context that is an entry of the backend in the profiler, if one runs."""
    if _Record is None or not _is_enabled():
        return _NOTHING
    return _Record(_name_of_user() or f"{NAME}:{title}", list(tensors), {})
