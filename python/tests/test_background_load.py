"""The busy loops beside the comparisons: they run inside the block, and never after it."""

import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[2] / "benches/support"
sys.path.insert(0, str(SUPPORT))
import background_load  # noqa: E402

# Ends a hang only.
HANG = 60.0
PROGRAM = f"""
import sys, time
sys.path.insert(0, {str(SUPPORT)!r})
import background_load
from argparse import Namespace
with background_load.busy_loops(Namespace(busy=2, busy_nice=0)):
    print("running", flush=True)
    time.sleep(600)
"""


def loops_of(parent):
    """Returns the running loops that a process has started. One that nobody has waited for has no command."""
    loops = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 3 and b"PR_SET_PDEATHSIG" in words[2] and words[3] == str(parent).encode():
            loops.append(int(folder.name))
    return loops


def test_loops_run_inside_the_block_only():
    with background_load.busy_loops(Namespace(busy=2, busy_nice=5)):
        loops = loops_of(os.getpid())
        assert len(loops) == 2
        # Niceness counts from that of the script, which may run under `nice` itself.
        expected = min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)
        assert [os.getpriority(os.PRIO_PROCESS, loop) for loop in loops] == [expected] * 2
    assert loops_of(os.getpid()) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_loops_end_with_a_killed_script(how):
    script = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert script.stdout.readline() == "running\n"
    assert len(loops_of(script.pid)) == 2
    script.send_signal(how)
    script.wait()
    script.stdout.close()
    end = time.monotonic() + HANG
    while loops_of(script.pid):
        assert time.monotonic() < end, "a loop outlives its script"
        time.sleep(0.01)


def test_loads_are_named():
    parser = ArgumentParser()
    background_load.add_options(parser)
    quiet, busy = parser.parse_args([]), parser.parse_args(["--busy", "2", "--busy-nice", "-5"])
    assert (background_load.words(quiet), background_load.suffix(quiet)) == ("0 busy loops", "")
    assert (background_load.words(busy), background_load.suffix(busy)) == ("2 busy loops, niceness -5", "-busy-2-nice--5")
    with pytest.raises(SystemExit):
        parser.parse_args(["--busy", "-1"])
