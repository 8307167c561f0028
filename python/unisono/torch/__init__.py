"""A backend of ``torch.distributed`` for tensors on the CPU.

    torch.distributed.init_process_group("unisono")
    torch.distributed.init_process_group("cpu:unisono,cuda:nccl")

torch finds the backend by itself through the entry points of this package. Settings come from the
environment (``UNISONO_...``), or from ``pg_options=unisono.torch.Options(channels=4)``.
"""

from unisono.torch._register import Options, register

__all__ = ["Options", "register"]

register()
