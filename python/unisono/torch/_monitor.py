"""The monitored barrier, which names the ranks that do not come. It goes through torch's store."""

import time
from datetime import timedelta

from unisono.errors import Timeout


def barrier(store, number, rank, size, timeout, wait_all_ranks):
    """Returns when all ranks have called it. The error on rank 0 names the first missing rank, or all of them.

    Args:
        number: The number of the barrier in its group, from 0.
    """
    key = f"unisono/monitored_barrier/{number}"
    if timeout <= timedelta(0):
        raise Timeout(f"Rank {rank} timed out in monitoredBarrier after 0 ms; give it a timeout above zero")
    if rank != 0:
        return _report_to_root(store, key, rank, timeout)
    missing = _missing_ranks(store, key, size, timeout, wait_all_ranks)
    if missing:
        names = ", ".join(str(rank) for rank in missing)
        text = f"Rank {names} failed to pass monitoredBarrier in {int(timeout / timedelta(milliseconds=1))} ms"
        text = f"Ranks {names} failed" + text.split("failed", 1)[1] if len(missing) > 1 else text
        store.set(f"{key}/result", text)
        raise Timeout(f"[Rank 0]: {text}; look at what those ranks are doing")
    store.set(f"{key}/result", "ok")


def _report_to_root(store, key, rank, timeout):
    store.set(f"{key}/{rank}", "here")
    try:
        # The root answers only after its own timeout, and may have called later than this rank.
        store.wait([f"{key}/result"], timeout)
        result = store.get(f"{key}/result").decode()
    except RuntimeError as error:
        result = str(error)
    if result != "ok":
        raise Timeout(
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
            f"for send/recv from rank 0. Please check rank 0 logs for faulty rank. ({result})"
        )


def _missing_ranks(store, key, size, timeout, wait_all_ranks):
    deadline = time.monotonic() + timeout.total_seconds()
    missing = []
    for rank in range(1, size):
        left = timedelta(seconds=max(0.001, deadline - time.monotonic()))
        try:
            store.wait([f"{key}/{rank}"], left)
        except RuntimeError:
            missing.append(rank)
            if not wait_all_ranks:
                break
    return missing
