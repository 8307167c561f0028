"""A backend of ``torch.distributed`` for tensors on the CPU.

    torch.distributed.init_process_group("unisono")
    torch.distributed.init_process_group("cpu:unisono,cuda:nccl")

torch finds the backend by itself through the entry points of this package. Settings come from the
environment (``UNISONO_...``), or from ``pg_options=unisono.torch.Options(channels=4)``.
"""

from unisono.torch._register import Options, register

__all__ = ["Options", "debug_handlers", "register"]


def debug_handlers():
    """Returns the ``handlers`` for ``torch.distributed.debug.start_debug_server`` that show this backend.

    By default, torch's pages and files show only the flight recorder of Gloo.
    """
    from unisono.torch import _debug

    return _debug.handlers()


register()
