"""Registration with torch, and the making of groups."""

import sys

import torch.distributed as dist

from unisono.errors import Unsupported
from unisono.torch._backend import UnisonoBackend
from unisono.torch._connect import connect
from unisono.torch._group import UnisonoGroup, tell_sources
from unisono.torch._versions import HAS_BACKENDS
from unisono.torch._whole_group import WholeGroup


class Options:
    """Settings of a group, for ``pg_options``.

    Args:
        settings: Settings by name, such as ``channels=4`` or ``transport="tcp"``.
    """

    def __init__(self, **settings):
        self.settings = settings


def register():
    """Makes the backend ``unisono`` known to torch. Further calls do nothing."""
    if not hasattr(dist.Backend, "UNISONO"):
        dist.Backend.register_backend("unisono", create, extended_api=True, devices=["cpu"])


def create(common, options):
    """Makes the backend of one group, as torch calls it on every rank of the group."""
    _check_devices(common.group_rank)
    settings = dict(getattr(options, "settings", None) or {})
    comm, store = connect(common.store, common.group_rank, common.group_size, common.timeout, settings)
    backend = UnisonoBackend(comm, store, common.timeout, str(common.group_id))
    if not HAS_BACKENDS:
        return WholeGroup(backend)
    if _is_one_of_several_backends():
        backend.is_one_of_several = True
        tell_sources()
        return backend
    return UnisonoGroup(backend, store)


def _is_one_of_several_backends():
    """Returns true if torch makes a group of several backends, such as ``cpu:unisono,cuda:nccl``.

    The arguments do not tell. The caller's map of devices does.
    """
    config = sys._getframe(2).f_locals.get("backend_config")
    return config is not None and len(set(config.get_device_backend_map().values())) > 1


def _check_devices(rank):
    """Refuses a group in which this backend is that of a device other than the CPU."""
    config = sys._getframe(2).f_locals.get("backend_config")
    others = {} if config is None else config.get_device_backend_map()
    for device, backend in others.items():
        if backend == "unisono" and device != "cpu":
            raise Unsupported(
                f"rank {rank} in init_process_group: `{device}:unisono` is not possible, because unisono has tensors "
                f"on the CPU alone; give `cpu:unisono,{device}:` and a backend of that device"
            )
