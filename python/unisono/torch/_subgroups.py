"""Groups that are made of other groups: by a split, a merge or a shrink, and groups whose ranks change."""

import secrets
import sys
import uuid
import zlib

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroup

from unisono.errors import InvalidUsage, Mismatch
from unisono.torch import _rendezvous
from unisono.torch._connect import _own_address, connect, milliseconds_of
from unisono.torch._tensors import even
from unisono.torch._work import UnisonoWork

# The flag of torch's `shrink_group` that ends running operations first.
_SHRINK_ABORT = 1


class Unconnected:
    """Stands for the communicator of a group before its first ``reconfigure``."""

    def __init__(self, rank, size, group):
        self.rank, self.size, self._group = rank, size, group

    def close(self):
        """Does nothing."""

    def error(self):
        """Returns None, because nothing has failed."""

    def __getattr__(self, name):
        raise InvalidUsage(
            f"rank {self.rank}: the group `{self._group}` was made with enable_reconfigure=True and has no ranks yet; "
            "call torch.distributed._reconfigure with the handles of all ranks first"
        )


class Subgroups:
    """Operations of a backend that make another backend, or change the ranks of this one."""

    supports_splitting = supports_shrinking = supports_reconfigure = True
    # The number of times that this rank has called `shrink`, and true if `shrink` made this backend.
    _shrinks, _is_shrunk = 0, False
    # The meeting point of this rank for the next `reconfigure`, and that of the last one, which holds the group's
    # store.
    _meeting_point = _former_meeting_point = _known_address = None
    # The uuids with which `reconfigure` was called.
    _used = frozenset()

    # -- Parts ---------------------------------------------------------------------------------

    def split(self, store, ranks, opts):
        """Returns the backend of the given ranks, over connections that meet through this group.

        Every rank of this group calls it with the ranks of its part, in their new order. A rank that is not in its own
        list gets None.
        """
        name, timeout = _name_and_timeout(opts, self)
        return self.part(store, ranks, name, timeout, opts)

    def perform_nocolor_split(self, device):
        """Takes part in a split without becoming a member. torch calls it on the ranks that are no members."""
        self._comm.split(None, 0, None)

    def part(self, store, ranks, name, timeout, opts=None):
        """Works as `split`, with options of this package or of torch."""
        ranks = list(ranks)
        if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(self.size())):
            raise InvalidUsage(
                f"rank {self.rank()} in split: the ranks are {ranks}, where each has to be there once, from 0 to "
                f"{self.size() - 1}; correct the list"
            )
        settings = {**self._settings, **settings_of(opts)}
        is_member = self.rank() in ranks
        color, key = (min(ranks), ranks.index(self.rank())) if is_member else (None, 0)
        comm = self._comm.split(color, key, _child_settings(timeout, settings))
        if comm is None:
            return None
        # All ranks compare their lists before one raises an error, so that no other rank waits for it.
        is_same, number = _compare(comm, ranks)
        if not is_same or (comm.rank, comm.size) != (key, len(ranks)):
            comm.close()
            raise Mismatch(
                f"rank {self.rank()} in split: this rank gives the part {ranks}, and others of the {comm.size} ranks "
                f"whose part begins at rank {color} give another; give the same parts in the same order on all ranks"
            )
        # An earlier group of the same name may have left keys in torch's store.
        return self._sibling(comm, PrefixStore(f"unisono/part/{number}", store), timeout, name, settings)

    def merge(self, store, opts, rank, size):
        """Returns the backend of ranks of several groups, which meet through a store."""
        name, timeout = _name_and_timeout(opts, self)
        store = PrefixStore(f"{name}/", store)
        comm, store = connect(store, rank, size, timeout, self._settings)
        return self._sibling(comm, store, timeout, name, self._settings)

    # -- What is left --------------------------------------------------------------------------

    def shrink(self, ranks_to_exclude, shrink_flags=0, opts_override=None):
        """Returns the backend of all ranks except the given ones, in their old order.

        The remaining ranks call it, after a failure or without one. They meet through the store of the group. The other
        ranks may have died, or may do anything else.
        """
        left = [rank for rank in range(self.size()) if rank not in set(ranks_to_exclude)]
        if self.rank() not in left:
            raise InvalidUsage(f"rank {self.rank()} in shrink: this rank is excluded; only ranks that stay call it")
        if shrink_flags & _SHRINK_ABORT:
            self.abort()
        name, timeout = _name_and_timeout(opts_override, self)
        settings = {**self._settings, **settings_of(opts_override)}
        self._shrinks += 1
        store = PrefixStore(f"unisono/shrink/{self._shrinks}", self._store)
        rank = left.index(self.rank())
        _rendezvous.agree(store, f"shrink without the ranks {sorted(ranks_to_exclude)}", rank, len(left), timeout, left)
        comm, store = connect(store, rank, len(left), timeout, settings)
        backend = self._sibling(comm, store, timeout, name or self._group, settings)
        backend._is_shrunk = True
        return backend

    # -- Ranks that change ---------------------------------------------------------------------

    def get_reconfigure_handle(self):
        """Returns a text with which the ranks of the next ``reconfigure`` find this one.

        The text stays the same until a ``reconfigure`` has succeeded.
        """
        if self._meeting_point is None:
            self._meeting_point = _rendezvous.MeetingPoint(self._address())
        return self._meeting_point.handle

    def reconfigure(self, opts):
        """Connects this rank to the ranks with the given handles, which replace its present ranks.

        In a list of handles, the position is the rank. In a set, the ranks follow the sorted order of the texts. If the
        ranks do not meet, the group stays as it was.
        """
        handle = self.get_reconfigure_handle()
        handles = sorted(opts.handles) if isinstance(opts.handles, (set, frozenset)) else list(opts.handles)
        if handles.count(handle) != 1 or len(set(handles)) != len(handles):
            raise InvalidUsage(
                f"rank {self.rank()} in reconfigure: {handles.count(handle)} of {len(handles)} handles are this "
                "rank's; give the present handle of every rank once"
            )
        if opts.uuid in self._used:
            raise InvalidUsage(
                f"rank {self.rank()} in reconfigure: the uuid {opts.uuid} was already used; give each call another one"
            )
        self._used = self._used | {opts.uuid}
        timeout = opts.timeout or self._timeout
        rank = handles.index(handle)
        store = self._meeting_point.meet(opts.uuid, handles, rank, timeout)
        settings = {**self._settings, "join_timeout_ms": str(milliseconds_of(timeout))}
        comm, store = connect(store, rank, len(handles), self._timeout, settings)
        former, self._comm = self._comm, comm
        self._store, self._sequence, self._monitored = store, 0, 0
        # Each handle can be used once. From now on, the store of the first handle is the store of the group.
        self._meeting_point, self._former_meeting_point = None, self._meeting_point
        former.close()
        return self._returned(UnisonoWork(None, []))

    def _address(self):
        """Returns the address at which the other ranks reach this one, according to the first store."""
        if self._known_address is None:
            self._known_address = _own_address(self._store)
        return self._known_address

    def _set_group_uid(self, name):
        """Stores the name of the group. torch sets it before it uses the group."""
        super()._set_group_uid(name)
        if self._is_shrunk:
            _correct_type(self)

    def _sibling(self, comm, store, timeout, name, settings):
        return type(self)(comm, store, timeout, name, settings)


def _compare(comm, ranks):
    """Returns true if all ranks of a communicator give the same list, with a random number that they share.

    All ranks call it.
    """
    own = torch.tensor([zlib.crc32(repr(ranks).encode()), secrets.randbits(62)])
    all_ranks = torch.empty(comm.size, 2, dtype=own.dtype)
    comm.run([even("all_gather", own.dtype, [own], [all_ranks])], None)
    return bool((all_ranks[:, 0] == own[0]).all()), int(all_ranks[0, 1])


def _name_and_timeout(opts, parent):
    """Returns the name and the timeout of a group that is made of another group."""
    name = getattr(opts, "group_name", "") or f"{parent._group}:{uuid.uuid4().hex[:8]}"
    return name, getattr(opts, "_timeout", None) or parent._timeout


def settings_of(opts):
    """Returns the settings by name in options of this package. Other options have no settings."""
    return dict(getattr(opts, "settings", None) or {})


def _child_settings(timeout, settings):
    milliseconds = str(milliseconds_of(timeout))
    return {"timeout_ms": milliseconds, "join_timeout_ms": milliseconds, **settings}


def _correct_type(backend):
    """Changes the type of the group of a shrunk backend to custom.

    torch's `shrink_group` gives every group on the CPU the type of Gloo, so DistributedDataParallel would cast the
    backend to Gloo's class. The group can be found only in the caller's variables.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_create_shrunk_process_group":
        frame = frame.f_back
    group = frame.f_locals.get("new_pg") if frame is not None else None
    if group is not None:
        kind = ProcessGroup.BackendType.CUSTOM
        group._register_backend(torch.device("cpu"), kind, backend)
        group._set_default_backend(kind)
