"""Lets the ranks of a group meet through torch's store."""

import os
import socket
from datetime import timedelta

from torch.distributed import PrefixStore

from unisono import _native
from unisono.communicator import _texts
from unisono.torch import _attempt


def connect(store, rank, size, timeout, settings):
    """Returns the native communicator of one rank of a group, and the part of the store that belongs to this group.

    Nothing in that part is older than the group, even if other groups have used the store before.

    The ranks meet through torch's store, which everybody on the network can read and write. If the ranks have
    ``UNISONO_SECRET``, or on loopback the key of their user, the store holds only an address and a nonce. Otherwise it
    holds the secret of the group, and rank 0 warns.
    """
    milliseconds = milliseconds_of(timeout)
    defaults = {"timeout_ms": milliseconds, "join_timeout_ms": milliseconds}
    set_by_user = {name for name in defaults if f"UNISONO_{name.upper()}" in os.environ}
    defaults = {name: value for name, value in defaults.items() if name not in set_by_user}
    own_address = os.environ.get("UNISONO_BIND_ADDR") or settings.get("bind_addr") or _own_address(store)
    if rank == 0 or not own_address.startswith("127."):
        defaults["bind_addr"] = own_address
    settings = {**defaults, **settings}
    seconds, path = _join_seconds(settings), _file_of(store)
    if seconds is not None:
        place = "the store" if path is None else f"the store in the file {path}"
        store = PrefixStore(_attempt.agree(store, place, rank, size, seconds), store)
    return _native.Communicator.join_through(store, path, rank, size, _texts(settings)), store


def milliseconds_of(timeout):
    """Returns a timeout as a setting, which is no shorter than the library allows."""
    return max(100, int(timeout / timedelta(milliseconds=1)))


def _join_seconds(settings):
    """Returns the time for which ranks wait for each other, or None if the library would refuse this time."""
    given = {name.upper().removeprefix("UNISONO_"): value for name, value in settings.items()}
    text = str(given.get("JOIN_TIMEOUT_MS", os.environ.get("UNISONO_JOIN_TIMEOUT_MS")))
    return int(text) / 1000 if text.isdecimal() else None


def _file_of(store):
    """Returns the path of a store that is a file, or else None. Such a store outlives its job."""
    return getattr(_innermost(store), "path", None)


def _innermost(store):
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _own_address(store):
    """Returns the address at which other ranks reach this host. This is loopback if all ranks are on this host."""
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE", "?"):
        return "127.0.0.1"
    host = getattr(_innermost(store), "host", None) or os.environ.get("MASTER_ADDR")
    if not host:
        return "127.0.0.1"
    address = _source_address(host)
    if address.startswith("127.") and not host.startswith(("127.", "localhost")):
        # The host's own name often stands for loopback, but ranks of other hosts need an address that they can reach.
        return _source_address("10.255.255.255")
    return address


def _source_address(host):
    """Returns the local address from which packets to ``host`` leave. No packet is sent.

    All addresses of a name are tried, because some may be in networks that this host cannot reach.
    """
    try:
        addresses = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return "127.0.0.1"
    for family, kind, _, _, address in addresses:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                return _with_scope(probe.getsockname())
        except OSError:
            continue
    return "127.0.0.1"


def _with_scope(address):
    """Returns the IP address of a socket's address. If the address is link-local, the result has its scope."""
    ip = address[0]
    has_scope = len(address) == 4 and address[3] and "%" not in ip
    return f"{ip}%{address[3]}" if has_scope else ip
