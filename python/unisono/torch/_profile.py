"""Entries of operations in torch's profiler, with the shapes of their tensors.

An entry lasts as long as the call. This is the whole operation if the caller waits for it, and only its start if it
runs in the background. Only C++ can end an entry of torch's profiler on another thread.
"""

from contextlib import nullcontext

import torch

# The name of the backend in torch's C++. It must not be the name of another backend, because DistributedDataParallel
# casts a backend with the name of Gloo to the class of Gloo.
NAME = "unisono"


def of_cpu_alone(group):
    """Returns the name of Gloo, by which torch's Python code recognizes that all tensors of a group are on the CPU.

    With another name, it would use the current GPU as the device of a sharded FSDP1 tensor without local rows.
    """
    return "gloo"


_is_enabled = torch.autograd._profiler_enabled
_Record = getattr(torch._C._profiler, "_RecordFunctionFast", None)
# Returns the name that `record_comm` gives to calls, or else "".
_name_of_user = getattr(torch._C._distributed_c10d, "_get_comm_profiling_name", str)


_NOTHING = nullcontext()


def entry(title, tensors):
    """Returns a context that makes an entry of the backend in the profiler, if a profiler runs."""
    if _Record is None or not _is_enabled():
        return _NOTHING
    return _Record(_name_of_user() or f"{NAME}:{title}", list(tensors), {})
