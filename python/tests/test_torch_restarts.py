"""Groups in a store that outlives them: restarted workers, and groups that are made again."""

import subprocess
import sys
import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from unisono import errors  # noqa: E402
from unisono.torch import _attempt, _connect  # noqa: E402

WAIT = timedelta(seconds=30)

RESTARTED = """
import os
import torch, torch.distributed as dist
import unisono.torch
from unisono.torch import _attempt, _connect

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def die(*_):
    os._exit(3)

class Dying:
    join_through = die

if (rank, attempt) == (2, 1):
    _attempt._ack_of = die  # After rank 0 has answered.
if (rank, attempt) == (0, 2):
    _connect._native = type("Native", (), {"Communicator": Dying})  # After all have heard rank 0.
for again in range(2):
    dist.init_process_group("unisono")
    dist.all_reduce(t := torch.ones(3))
    if (rank, attempt) == (1, 0):
        die()
    dist.all_reduce(u := torch.ones(3), group=dist.new_group())
    # One write for each rank, so that those of others do not come between.
    os.write(1, f"attempt {attempt} sums {t[0].item()} {u[0].item()}\\n".encode())
    dist.destroy_process_group()
"""


def test_restarted_workers_meet_in_the_store_of_torchrun(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(RESTARTED)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    words += ["--max-restarts", "3", "--monitor-interval", "0.1", str(program)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("attempt 3 sums 3.0 3.0") == 6, ran.stdout + ran.stderr


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_group_is_made_again_in_the_same_store(processes, tmp_path, kind):
    port = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if kind == "tcp" else None

    def body(rank, size):
        dist.destroy_process_group()
        if kind == "file":
            store = dist.FileStore(str(tmp_path / "store"), size)
        else:
            store = dist.TCPStore("127.0.0.1", port.port, is_master=False, timeout=WAIT)
        for again in range(6):
            # Other ranks each time, and fewer ones every other time.
            ranks = 3 - again % 2
            number = (rank + again) % size
            if number < ranks:
                dist.init_process_group("unisono", store=store, rank=number, world_size=ranks, timeout=WAIT)
                dist.all_reduce(values := torch.full((3,), 10.0**number))
                assert values[0] == [11, 111][ranks - 2], (again, values)
                dist.all_reduce(values := torch.ones(2), group=dist.new_group())
                assert values[0] == ranks
                dist.destroy_process_group()
            # A rank that was left out does not begin the next group before the others have ended this one.
            if store.add(f"ended/{again}", 1) == size:
                store.set(f"next/{again}", "")
            store.wait([f"next/{again}"], WAIT)

    processes(3, body)


def test_monitored_barrier_of_a_later_group_waits_for_its_ranks(processes, tmp_path):
    def body(rank, size):
        dist.destroy_process_group()
        store = dist.FileStore(str(tmp_path / "store"), size)
        for again in range(2):
            dist.init_process_group("unisono", store=store, rank=rank, world_size=size, timeout=WAIT)
            if again == 0:
                dist.monitored_barrier()
            elif rank == 0:
                with pytest.raises(errors.Timeout, match="Rank 1 failed to pass monitoredBarrier"):
                    dist.monitored_barrier(timeout=timedelta(milliseconds=300))
            dist.barrier()
            dist.destroy_process_group()

    processes(2, body)


def together(*bodies):
    """Runs functions on threads, and returns what each returned or raised."""
    results = [None] * len(bodies)

    def run(number):
        try:
            results[number] = bodies[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


def agree(store, rank, size, seconds=30):
    """Returns a function that is one rank until the address of rank 0 is there."""

    def run():
        attempt = _attempt.agree(store, "the store", rank, size, seconds)
        if rank == 0:
            store.set(f"{attempt}/{_attempt.KEY}", "here")
        return attempt

    return run


def test_ranks_agree_beside_keys_of_every_earlier_attempt():
    store, attempts = dist.HashStore(), set()
    for size in (4, 2, 3, 4, 1, 2):
        (attempt,) = set(together(*[agree(store, rank, size) for rank in reversed(range(size))]))
        attempts.add(attempt)
    assert len(attempts) == 6, attempts


def test_rank_that_died_while_it_met_is_replaced():
    """Rank 0 has answered the dead process already, and goes on with the one that is there."""
    store, dead = dist.HashStore(), "d" * 32
    store.set("unisono/torch/rank/1", f"{dead} 2")

    def replacement():
        store.wait([f"unisono/torch/answer/{dead}"], WAIT)
        return agree(store, 1, 2)()

    leader, other = together(agree(store, 0, 2), replacement)
    assert leader == other and store.get(f"unisono/torch/answer/{dead}").decode() == leader


def test_rank_follows_the_last_process_that_leads():
    """A rank 0 that has answered and died is followed by another one."""
    store, dead = dist.HashStore(), "d" * 32

    def successor():
        store.wait(["unisono/torch/rank/1"], WAIT)
        nonce = store.get("unisono/torch/rank/1").decode().split()[0]
        store.set(f"unisono/torch/answer/{nonce}", dead)
        store.wait([f"unisono/torch/{dead}/1"], WAIT)
        return agree(store, 0, 2)()

    leader, other = together(successor, agree(store, 1, 2))
    assert leader == other != dead


def test_later_process_of_rank_0_ends_the_attempt_of_an_earlier_one():
    store = dist.HashStore()

    def later():
        store.wait(["unisono/torch/leader"], WAIT)
        store.set("unisono/torch/leader", "e" * 32)

    earlier, _ = together(agree(store, 0, 2), later)
    assert isinstance(earlier, errors.BootstrapError) and "a later process has begun one as rank 0" in str(earlier)


def test_ranks_of_different_world_sizes_are_told():
    store = dist.HashStore()
    zero, one = together(agree(store, 0, 4), agree(store, 1, 3))
    assert isinstance(zero, errors.BootstrapError) and "group of 4 ranks, and rank 1 in one of 3" in str(zero)
    assert isinstance(one, errors.BootstrapError) and "group of 3 ranks, and rank 0 in one of 4" in str(one)


def test_ranks_that_do_not_come_are_named(tmp_path):
    store = dist.HashStore()
    store.set("unisono/torch/rank/2", f"{'d' * 32} 4")
    zero, one = together(agree(store, 0, 4, 0.5), agree(store, 1, 4, 0.6))
    assert "rank 0 on " in str(zero) and "waited 0.5 s for ranks 2, 3 in the store" in str(zero), zero
    assert "what it holds of them is old" in str(zero) and zero.peer == 2
    assert "rank 0 has answered, but does not go on" in str(one) and one.peer == 0, one
    path = str(tmp_path / "store")
    expected = "rank 1 .* waited 0.2 s for rank 0, .*the store in the file"
    with pytest.raises(errors.BootstrapError, match=expected) as told:
        _connect.connect(dist.FileStore(path, 2), 1, 2, timedelta(seconds=0.2), {})
    assert path in str(told.value)


def test_strange_values_in_the_store_are_passed_over():
    for strange in ("", "x", "é" * 40, f"{'d' * 32} {'9' * 30}", f"{'d' * 32} -1", "g" * 32 + " 2", "d" * 1_000_000):
        store = dist.HashStore()
        store.set("unisono/torch/rank/1", strange)
        store.set("unisono/torch/leader", strange)
        leader, other = together(agree(store, 0, 2), agree(store, 1, 2))
        assert leader == other, strange


@pytest.mark.parametrize("environ", [{}, {"UNISONO_JOIN_TIMEOUT_MS": "no"}])
def test_refused_setting_is_named_before_any_wait(monkeypatch, environ):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    settings = {} if environ else {"join_timeout_ms": "no"}
    with pytest.raises(errors.Error, match="(?i)join_timeout_ms"):
        _connect.connect(dist.HashStore(), 1, 2, WAIT, settings)



def test_store_that_fails_is_an_error_at_once():
    class Gone(dist.Store):
        def set(self, key, value):
            pass

        def wait(self, keys, timeout):
            raise RuntimeError("connection reset by peer")

    with pytest.raises(errors.BootstrapError, match="rank 1 .* cannot use the store: connection reset by peer"):
        agree(Gone(), 1, 2)()
