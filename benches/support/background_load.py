"""Busy loops beside measured processes, for the scripts that compare libraries."""

import argparse
import os
import subprocess
import sys
from contextlib import contextmanager

# A loop ends with the thread that started it, however that ends. The parent may be gone already when it asks for that.
_LOOP = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process beside which it runs is gone")
os.nice(int(sys.argv[2]))
print("ready", flush=True)
while True:
    pass
"""


def _loops(text):
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def add_options(parser):
    """Adds the options ``--busy`` and ``--busy-nice`` to a parser."""
    parser.add_argument("--busy", type=_loops, default=0, help="processes that spin beside the ranks")
    which = "niceness of those processes: above 0 they yield to the ranks, below 0 they go first"
    parser.add_argument("--busy-nice", type=int, default=0, help=which)


def words(options):
    """Returns the load in words: ``2 busy loops, niceness 10``."""
    loops = "1 busy loop" if options.busy == 1 else f"{options.busy} busy loops"
    return loops + (f", niceness {options.busy_nice}" if options.busy and options.busy_nice else "")


def suffix(options):
    """Returns the load as the end of a file's name, and nothing without a load."""
    if not options.busy:
        return ""
    return f"-busy-{options.busy}" + (f"-nice-{options.busy_nice}" if options.busy_nice else "")


@contextmanager
def busy_loops(options):
    """Runs processes that only spin, as other users of the processors. They run when the block begins."""
    command = [sys.executable, "-c", _LOOP, str(os.getpid()), str(options.busy_nice)]
    loops = []
    try:
        for _ in range(options.busy):
            loops.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for loop in loops:
            if loop.stdout.readline() != "ready\n":
                raise RuntimeError("a process beside the ranks did not begin; its output says why")
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
            loop.stdout.close()
