"""Registration with torch, and the making of groups."""

import sys
import weakref

import torch.distributed as dist

from unisono.errors import Unsupported
from unisono.torch._backend import UnisonoBackend
from unisono.torch._connect import connect
from unisono.torch._group import ChangingGroup, UnisonoGroup, tell_sources
from unisono.torch._subgroups import Unconnected, settings_of
from unisono.torch._untraced import leave_untraced
from unisono.torch._versions import HAS_BACKENDS
from unisono.torch._whole_group import WholeGroup


# Keeps the backends of groups of several backends alive. With ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, only C++ code of
# torch refers to them, so they would lose their Python part.
_BACKENDS = weakref.WeakKeyDictionary()


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
        leave_untraced("unisono")


def create(common, options):
    """Makes the backend of one group, as torch calls it on every rank of the group."""
    _check_devices(common.group_rank)
    backend = _backend(common, options)
    if not HAS_BACKENDS:
        return WholeGroup(backend)
    if _is_one_of_several_backends():
        backend.is_one_of_several = True
        tell_sources()
        if (group := getattr(common, "process_group", None)) is not None:
            _BACKENDS[group] = backend
        return backend
    group = (ChangingGroup if _is_changing(common) else UnisonoGroup)(backend, backend.store)
    # This group replaces a group that torch may have bound to a device.
    group.bound_device_id = getattr(getattr(common, "process_group", None), "bound_device_id", None)
    return group


def _backend(common, options):
    settings = settings_of(options)
    store, timeout, group = common.store, common.timeout, str(common.group_id)
    rank, size = common.group_rank, common.group_size
    parent = getattr(common, "split_from", None)
    if isinstance(parent, UnisonoBackend) and not _is_known_to_members_alone(group):
        return parent.part(store, common.global_ranks_in_group, group, timeout, options)
    if _is_changing(common):
        return UnisonoBackend(Unconnected(rank, size, group), store, timeout, group, settings)
    comm, store = connect(store, rank, size, timeout, settings)
    return UnisonoBackend(comm, store, timeout, group, settings)


def _is_changing(common):
    """Returns true if `reconfigure` gives the group its ranks."""
    return getattr(common, "enable_reconfigure", False)


def _is_known_to_members_alone(group):
    """Returns true for a group with `use_local_synchronization`, which torch names by a digest instead of a number."""
    return not group.isdigit()


def _is_one_of_several_backends():
    """Returns true if torch makes a group of several backends, such as ``cpu:unisono,cuda:nccl``.

    The arguments do not show this, but the caller's map of devices does.
    """
    config = sys._getframe(2).f_locals.get("backend_config")
    return config is not None and len(set(config.get_device_backend_map().values())) > 1


def _check_devices(rank):
    """Refuses a group that uses this backend for a device other than the CPU."""
    config = sys._getframe(2).f_locals.get("backend_config")
    others = {} if config is None else config.get_device_backend_map()
    for device, backend in others.items():
        if backend == "unisono" and device != "cpu":
            raise Unsupported(
                f"rank {rank} in init_process_group: `{device}:unisono` is not possible, because unisono has tensors "
                f"on the CPU alone; give `cpu:unisono,{device}:` and a backend of that device"
            )
