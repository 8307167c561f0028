"""Lets the ranks of a group agree on the attempt in which they meet.

A store may hold keys of earlier groups with the same name. For example, torchrun restarts its workers and keeps the
store, a group is destroyed and made again, or a worker dies while it looks for the others. The environment of a rank
does not identify its attempt, because every agent counts restarts separately. So the ranks prove to each other that
they run now:

1. Rank 0 draws the name of an attempt. Every other rank draws a nonce and writes it under its rank.
2. Rank 0 answers each nonce, under the nonce, with the name of its attempt. No rank reads answers to
   nonces of earlier attempts. If the nonce of a rank changes, rank 0 answers again.
3. A rank that has an answer confirms it under the name of the attempt. When all ranks have done so,
   they meet under this name. No key below this name is older than the youngest rank.

These keys hold no secret of the group. Somebody who can write to the store can keep the ranks from meeting.
"""

import os
import re
import secrets
import socket
import time
from datetime import timedelta

from unisono.errors import BootstrapError

FOLDER = "unisono/torch"
# The key of rank 0's address, below the name of an attempt.
KEY = f"{FOLDER}/id"
_NONCE = re.compile(r"[0-9a-f]{32}")
# Seconds between two reads of keys that an earlier attempt may have written: the first pause and the longest one.
_FIRST_LOOK, _LAST_LOOK = 0.02, 0.1


def agree(store, place, rank, size, seconds):
    """Returns the name of the attempt on which all ranks of a group have agreed.

    Args:
        place: The description of the store in errors.
        seconds: The time for which ranks wait for each other.
    """
    if size == 1:
        return _draw()
    meeting = _Meeting(store, place, rank, size, seconds)
    try:
        return meeting.lead() if rank == 0 else meeting.follow()
    except (RuntimeError, LookupError, OSError) as error:
        if isinstance(error, BootstrapError):
            raise
        raise meeting.failure(f"cannot use {place}: {error}; look at the process that serves it") from error


class _Meeting:
    def __init__(self, store, place, rank, size, seconds):
        self._store, self._place, self._rank, self._size = store, place, rank, size
        self._seconds, self._deadline = seconds, time.monotonic() + seconds

    # -- Rank 0 --------------------------------------------------------------------------------

    def lead(self):
        """Answers the other ranks until each has confirmed the answer."""
        attempt = _draw()
        self._store.set(f"{FOLDER}/leader", attempt)
        answered, missing, look = {}, list(range(1, self._size)), _FIRST_LOOK
        while missing:
            self._wait([_key_of(rank) for rank in missing], look)
            self._answer(attempt, missing, answered)
            self._wait([_ack_of(attempt, rank) for rank in missing], look)
            missing = [rank for rank in missing if not self._has_heard(attempt, rank)]
            self._check_leader(attempt)
            if missing and self._is_late():
                raise self._without(missing, answered)
            look = min(_LAST_LOOK, 2 * look)
        return attempt

    def _answer(self, attempt, ranks, answered):
        """Answers the nonces of ranks that have not had an answer."""
        for rank, value in self._values({rank: _key_of(rank) for rank in ranks}).items():
            nonce, _ = _words(value)
            if nonce is not None and nonce != answered.get(rank):
                self._store.set(f"{FOLDER}/answer/{nonce}", attempt)
                answered[rank] = nonce

    def _has_heard(self, attempt, rank):
        value = self._values({rank: _ack_of(attempt, rank)}).get(rank)
        nonce, size = _words(value) if value is not None else (None, None)
        if nonce is not None and size != self._size:
            self._store.set(f"{FOLDER}/{attempt}/size", str(self._size))
            raise self.failure(
                f"was started in a group of {self._size} ranks, and rank {rank} in one of {size}; start all ranks "
                "with the same world size",
                rank,
            )
        return nonce is not None

    def _check_leader(self, attempt):
        """Ends the attempt if another process has begun one."""
        if self._values({0: f"{FOLDER}/leader"}).get(0) != attempt:
            raise self.failure(
                "ends its attempt, because a later process has begun one as rank 0 of the same group in "
                f"{self._place}; start one process for each rank"
            )

    def _without(self, missing, answered):
        ranks = ", ".join(str(rank) for rank in missing)
        absent = [rank for rank in missing if rank not in answered]
        since = "none of them has written to it" if absent == missing else "what it holds of them is old"
        return self.failure(
            f"waited {self._seconds:.1f} s for rank{'s' * (len(missing) > 1)} {ranks} in {self._place} ({since}); "
            "look at what became of them, or raise `timeout` or UNISONO_JOIN_TIMEOUT_MS if they are slow to start",
            missing[0],
        )

    # -- The other ranks -----------------------------------------------------------------------

    def follow(self):
        """Waits for the answer of rank 0, and then for all other ranks."""
        nonce, attempt, look = _draw(), None, _FIRST_LOOK
        answer, own = f"{FOLDER}/answer/{nonce}", f"{nonce} {self._size}"
        self._store.set(_key_of(self._rank), own)
        while not self._wait([answer], _LAST_LOOK):
            if self._is_late():
                raise self.failure(
                    f"waited {self._seconds:.1f} s for rank 0, which writes to {self._place}; look at what became of "
                    "it, or raise `timeout` or UNISONO_JOIN_TIMEOUT_MS if it is slow to start",
                    0,
                )
        while True:
            # If a later rank 0 answers, too, its answer replaces the earlier one.
            latest = self._values({0: answer}).get(0, "")
            if latest != attempt and _NONCE.fullmatch(latest):
                attempt = latest
                self._store.set(_ack_of(attempt, self._rank), own)
            if attempt is not None and self._wait([f"{attempt}/{KEY}"], look):
                return attempt
            self._check_size(attempt)
            if self._is_late():
                raise self.failure(
                    f"waited {self._seconds:.1f} s in {self._place}: rank 0 has answered, but does not go on; its "
                    "error names the rank that did not come",
                    0,
                )
            look = min(_LAST_LOOK, 2 * look)

    def _check_size(self, attempt):
        size = self._values({0: f"{FOLDER}/{attempt}/size"}).get(0, "")
        if size.isdecimal() and len(size) < 10 and int(size) != self._size:
            raise self.failure(
                f"was started in a group of {self._size} ranks, and rank 0 in one of {size}; start all ranks with the "
                "same world size",
                0,
            )

    # -- The store -----------------------------------------------------------------------------

    def _wait(self, keys, seconds):
        """Returns true as soon as all keys have a value, and false if that takes longer than ``seconds``."""
        begun = time.monotonic()
        seconds = max(0.001, min(seconds, self._deadline - begun))
        try:
            self._store.wait(keys, timedelta(seconds=seconds))
        except (RuntimeError, LookupError):
            if time.monotonic() - begun < 0.9 * seconds:
                raise
            return False
        return True

    def _values(self, keys):
        """Returns the texts of those keys that have a value. Keys and texts are indexed by rank."""
        names = list(keys.values())
        if len(names) > 1 and self._store.has_extended_api() and self._store.check(names):
            return {rank: _text(value) for rank, value in zip(keys, self._store.multi_get(names))}
        return {rank: _text(self._store.get(name)) for rank, name in keys.items() if self._store.check([name])}

    def _is_late(self):
        return time.monotonic() >= self._deadline

    def failure(self, what, peer=None):
        where = f"rank {self._rank} on {socket.gethostname()} (pid {os.getpid()})"
        error = BootstrapError(f"{where} {what}")
        error.rank, error.peer = self._rank, peer
        return error


def _draw():
    return secrets.token_hex(16)


def _key_of(rank):
    return f"{FOLDER}/rank/{rank}"


def _ack_of(attempt, rank):
    return f"{FOLDER}/{attempt}/{rank}"


def _text(value):
    """Returns a value of a store as text. Somebody else may have written it."""
    return value[:100].decode("ascii", "replace")


def _words(value):
    """Returns the nonce and the size of the group that a rank has written, or (None, None)."""
    nonce, _, size = value.partition(" ")
    if _NONCE.fullmatch(nonce) and size.isdecimal() and len(size) < 10:
        return nonce, int(size)
    return None, None
