"""Collective communication for arrays, and a backend of torch.distributed.

    import numpy, unisono

    comm = unisono.Communicator.from_env()      # under `unisono run` or torchrun
    gradients = numpy.ones(1000, dtype="float32")
    comm.all_reduce(gradients)                  # every element is now `comm.size`

torch 2.15 finds the backend for ``init_process_group("unisono")`` by itself. Older versions of
torch need ``import unisono.torch``.
"""

from unisono._native import __version__
from unisono.communicator import Communicator, Work, unique_id
from unisono.errors import Error

__all__ = ["Communicator", "Error", "Work", "__version__", "unique_id"]
