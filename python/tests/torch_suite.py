"""Runs the suite of distributed tests that ships inside the wheel of torch.

    python tests/torch_suite.py gloo            # Gloo itself: what it passes
    python tests/torch_suite.py gloo-replaced   # unisono in the place of Gloo
    python tests/torch_suite.py unisono         # unisono under its own name
    python tests/torch_suite.py mpi-replaced    # the tests of all_to_all, which ask for MPI

With ``--expect FILE``, tests that are named there must pass. ``--write FILE`` writes the names of
those that pass. ``-k WORD`` runs tests whose names contain a word. ``-v`` prints failures.
"""

import argparse
import os
import sys
import time
import unittest
from pathlib import Path

RANKS = "3"


def prepare(mode):
    """Sets the environment that the suite reads when it is imported, and registers the backend."""
    backend = {"unisono": "unisono", "mpi-replaced": "mpi"}.get(mode, "gloo")
    os.environ.update(BACKEND=backend, WORLD_SIZE=RANKS, TEMP_DIR=os.environ.get("TMPDIR", "/tmp"))
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import DistTestCases

    if mode == "gloo":
        return
    from unisono.torch import _register

    _register.register()
    if mode == "gloo-replaced":
        dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(_register.create, True)
    else:
        for feature in ("ddp", "subgroup"):
            DistTestCases.backend_feature[feature].add("unisono")


def suite_class(mode):
    """Returns the test case, whose ranks are forks of this process, which has imported torch."""
    import torch.multiprocessing
    from torch.testing._internal.distributed import distributed_test

    if mode == "mpi-replaced":
        # The tests have read the name when they were defined. Those of all_to_all run for MPI only.
        distributed_test.BACKEND = "unisono"
    if mode != "gloo":
        # Entries in the profiler that end on another thread are for backends in C++. The tests of
        # this package look at the entries that a backend in Python can make.
        distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


def run(mode, words, verbose, only):
    """Runs the tests, and returns the names of those that passed, failed and were skipped."""
    case = suite_class(mode)
    names = [name for name in unittest.TestLoader().getTestCaseNames(case) if all(word in name for word in words)]
    names = [name for name in names if only is None or name in only]
    names = [name for name in names if mode != "mpi-replaced" or "all_to_all" in name]
    passed, failed, skipped = [], [], []
    for name in names:
        begun = time.monotonic()
        result = unittest.TestResult()
        output, errors = sys.stdout, sys.stderr
        saved = None if verbose else silence()
        try:
            unittest.TestSuite([case(name)]).run(result)
        finally:
            if saved is not None:
                restore(saved)
            sys.stdout, sys.stderr = output, errors
        bad = result.failures + result.errors + [(test, "unexpected success") for test in result.unexpectedSuccesses]
        list_of = failed if bad else skipped if result.skipped else passed
        list_of.append(name)
        word = "FAILED" if bad else "skipped" if result.skipped else "ok"
        if word != "skipped":
            print(f"{word:8}{time.monotonic() - begun:6.1f} s  {name}", flush=True)
        for _, text in bad if verbose else []:
            print(text, flush=True)
    return passed, failed, skipped


def silence():
    """Sends what this process and its forks print to nowhere."""
    sys.stdout.flush(), sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1), os.dup2(nowhere, 2), os.close(nowhere)
    return saved


def restore(saved):
    sys.stdout.flush(), sys.stderr.flush()
    os.dup2(saved[0], 1), os.dup2(saved[1], 2), os.close(saved[0]), os.close(saved[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["gloo", "gloo-replaced", "unisono", "mpi-replaced"])
    parser.add_argument("--expect", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("-k", dest="words", action="append", default=[])
    parser.add_argument("-v", dest="verbose", action="store_true")
    options = parser.parse_args()
    prepare(options.mode)
    expected = options.expect.read_text().split() if options.expect else None
    begun = time.monotonic()
    passed, failed, skipped = run(options.mode, options.words, options.verbose, expected)
    if options.write:
        options.write.write_text("".join(f"{name}\n" for name in sorted(passed)))
    missing = sorted(set(expected or []) - set(passed)) if not options.words else failed
    for name in missing:
        print(f"must pass, but did not: {name}")
    print(f"{options.mode}: {time.monotonic() - begun:.0f} s, {len(skipped)} need what is not here")
    print(f"{len(passed)} passed, {len(failed)} failed", flush=True)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
