"""Compares the CPU collectives of JAX over unisono with those over Gloo, on 2 and 4 processes.

`check.py UNISONO LIBRARY` runs the programs beside it with the launcher UNISONO and the MPI library
LIBRARY. Results must be equal, and sums of floats close. What XLA refuses with one implementation
is listed here, so that neither new failures nor new successes pass unnoticed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SIZES = (2, 4)

# XLA has no MPI type for these, and refuses them before it calls the library.
REFUSED_BY_XLA = {f"{name} float16" for name in ("psum", "pmax", "pmin", "psum_scatter")}
# The library has no such reduction, and says so.
REFUSED = {
    f"{name} {dtype}" for name in ("psum", "pmax", "pmin", "psum_scatter") for dtype in ("int16", "uint16")
}


def run(size: int, program: str, implementation: str, folder: str, *arguments: str) -> subprocess.CompletedProcess:
    """Runs a program on some ranks and returns what it printed."""
    launcher, library = sys.argv[1:3]
    environment = {**os.environ, "MPITRAMPOLINE_LIB": library} if implementation == "mpi" else None
    command = [launcher, "run", "-n", str(size), "--", sys.executable, HERE / program, implementation, folder]
    return subprocess.run(
        [*map(str, command), *arguments], env=environment, timeout=600, capture_output=True, text=True
    )


def saved(folder: str, name: str) -> dict[str, np.ndarray]:
    with np.load(f"{folder}/{name}.npz") as file:
        return {key: file[key] for key in file.files}


def refused(found: np.ndarray) -> bool:
    return found.dtype.kind == "U"


def compare_collectives(ours: dict, theirs: dict) -> list[str]:
    """Returns what differs from Gloo's results."""
    wrong = [] if ours.keys() == theirs.keys() else ["other collectives were run"]
    for name, found in ours.items():
        expected = theirs[name]
        if name in REFUSED_BY_XLA | REFUSED:
            words = "Unsupported primitive type" if name in REFUSED_BY_XLA else "is not implemented"
            if not refused(found) or words not in str(found):
                wrong.append(f"{name} was not refused: {found}")
        elif refused(found) and refused(expected):
            continue  # JAX itself refuses it, such as the maximum of complex numbers.
        elif refused(found) or found.dtype != expected.dtype or not np.array_equal(found, expected):
            wrong.append(f"{name}: {found} instead of {expected}")
    return wrong


def compare_training(ours: dict, theirs: dict) -> list[str]:
    wrong = []
    for key in ("losses", "weights"):
        if not np.allclose(ours[key], theirs[key], rtol=1e-4, atol=1e-6):
            wrong.append(f"{key} differ by {abs(ours[key] - theirs[key]).max()}")
    if not ours["losses"][-1] < ours["losses"][0] / 2:
        wrong.append(f"the loss does not fall: {ours['losses']}")
    return wrong


def compare_pmap(ours: dict, theirs: dict) -> list[str]:
    same = np.array_equal(ours["sums"], theirs["sums"]) and np.count_nonzero(ours["sums"])
    return [] if same else [f"{ours} instead of {theirs}"]


def check(program: str, size: int, compare) -> list[str]:
    """Runs a program over both implementations and returns what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        for implementation in ("gloo", "mpi"):
            ended = run(size, program + ".py", implementation, folder)
            if ended.returncode != 0:
                return [f"{implementation} ended with {ended.returncode}\n{ended.stdout}\n{ended.stderr}"]
        names = [f"{program}-{{}}-{size}-{rank}" for rank in range(size)]
        pairs = [(saved(folder, name.format("mpi")), saved(folder, name.format("gloo"))) for name in names]
        return [line for pair in pairs for line in compare(*pair)]


def check_leaving(size: int) -> list[str]:
    """A rank that ends without a word is an error that names it on the others."""
    with tempfile.TemporaryDirectory() as folder:
        ended = run(size, "leave.py", "mpi", folder)
        said = ended.stdout + ended.stderr
        return [] if "caught" in said and f"rank {size - 1}" in said else [said]


def main() -> None:
    checks = {
        f"{program} on {size}": (lambda program=program, size=size, compare=compare: check(program, size, compare))
        for size in SIZES
        for program, compare in (
            ("collectives", compare_collectives),
            ("train", compare_training),
            ("pmap", compare_pmap),
        )
    }
    checks["a rank that leaves, on 2"] = lambda: check_leaving(2)
    failed = 0
    for name, run_check in checks.items():
        wrong = run_check()
        failed += bool(wrong)
        print("FAILED" if wrong else "ok", name, *wrong[:20], sep="\n  " if wrong else " ", flush=True)
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
