"""Lets ranks agree, through a store of torch, on the group that they are going to make."""

import uuid

from torch._C._distributed_c10d import PrefixStore, TCPStore

from unisono.errors import InvalidUsage, Mismatch, Timeout

_HANDLE = "unisono"


def agree(store, call, rank, size, timeout, names=None):
    """Returns when all ranks have made the same call. Raises an error on all of them otherwise.

    Args:
        store: A store that was not used for an agreement before.
        call: Text that is equal on all ranks, such as the parameters of the call.
        names: The names of the ranks in errors, if they differ from their numbers.
    """
    names = list(names or range(size))
    # The keys contain the names, because ranks whose calls differ could use the same numbers.
    if rank == 0:
        return _judge(store, call, timeout, names)
    store.set(f"call/{names[rank]}", call)
    try:
        # Rank 0 waits for the others for the same time, and may have called later than this rank.
        store.wait([f"verdict/{names[0]}"], 2 * timeout)
        verdict = store.get(f"verdict/{names[0]}").decode()
    except RuntimeError as error:
        raise Timeout(
            f"rank {names[rank]} in {call}: rank {names[0]} does not answer ({error}); look whether it lives, and make "
            "the call on all ranks"
        ) from None
    if verdict != "ok":
        raise _error(verdict)


def _judge(store, call, timeout, names):
    verdict = "ok"
    for name in names[1:]:
        try:
            store.wait([f"call/{name}"], timeout)
        except RuntimeError:
            verdict = (
                f"missing: rank {name} has not come to {call} within {timeout.total_seconds()} s; look whether it "
                "lives, and make the call without it"
            )
            break
        other = store.get(f"call/{name}").decode()
        if other != call:
            verdict = f"mismatch: rank {names[0]} calls {call}, rank {name} calls {other}; make the same call"
            break
    store.set(f"verdict/{names[0]}", verdict)
    if verdict != "ok":
        raise _error(verdict)


def _error(verdict):
    kind, _, text = verdict.partition(": ")
    return {"missing": Timeout, "mismatch": Mismatch}[kind](text)


class MeetingPoint:
    """A store on a separate port, where the ranks of a later group can meet this rank.

    It is independent of the store of the group, which may end with another rank.
    """

    def __init__(self, address):
        self._store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        self.handle = f"{_HANDLE}|{address}|{self._store.port}|{uuid.uuid4().hex}"

    def meet(self, number, handles, rank, timeout):
        """Waits for the ranks with the given handles, and returns a store of these ranks."""
        address, port = _address_of(handles[0], rank)
        store = self._store if rank == 0 else _reached(address, port, rank, timeout)
        store = PrefixStore(f"{number}/{handles[0]}", store)
        agree(store, f"reconfigure {number} of {len(handles)} ranks, {_digest(handles)}", rank, len(handles), timeout)
        return store


def _reached(address, port, rank, timeout):
    try:
        return TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)
    except RuntimeError as error:
        raise Timeout(
            f"rank {rank} in reconfigure: nobody answers at {address}:{port}, the place of the first handle, within "
            f"{timeout.total_seconds()} s ({error}); look whether rank 0 lives, and exchange new handles"
        ) from None


def _digest(handles):
    return f"digest {uuid.uuid5(uuid.NAMESPACE_OID, ' '.join(handles)).hex[:12]} of the handles"


def _address_of(handle, rank):
    parts = handle.split("|")
    if len(parts) != 4 or parts[0] != _HANDLE or not parts[2].isdigit():
        raise InvalidUsage(
            f"rank {rank} in reconfigure: `{handle}` is no handle of this backend; give what "
            "get_reconfigure_handle returned on each rank"
        )
    return parts[1], int(parts[2])
