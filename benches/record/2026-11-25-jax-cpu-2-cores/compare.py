"""Times the CPU collectives of JAX over unisono and over Gloo, in alternating rounds.

`compare.py UNISONO LIBRARY ROUNDS` starts itself as the ranks, with the launcher UNISONO and the MPI
library LIBRARY, and writes `results.csv` and the tables of `README.md` beside it. With `--busy 2`, two
processes spin beside the ranks, and the file is `results-busy-2.csv`. `compare.py tables` writes the
tables of all files again.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "support"))
import background_load  # noqa: E402

PROGRAMS = HERE.parents[2] / "adapters/mpi/jax"
RANKS = (2, 4)
SIZES = [4, 4 << 10, 1 << 20, 16 << 20]
STEPS = 60
KINDS = {"unisono": "mpi", "block": "mpi", "gloo": "gloo"}
# The library waits in the mode `auto` unless it is told otherwise.
ENVIRONMENTS = {"block": {"UNISONO_WAIT": "block"}}


def measure(implementation: str, path: str) -> None:
    """Times every collective on this rank; rank 0 writes the medians, in seconds."""
    import jax
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    sys.path.insert(0, str(PROGRAMS))
    from ranks import join

    rank, size = join(implementation)
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    ring = [(source, (source + 1) % size) for source in range(size)]
    operations = {
        "psum": lambda x: lax.psum(x, "ranks"),
        "all_gather": lambda x: lax.all_gather(x, "ranks"),
        "psum_scatter": lambda x: lax.psum_scatter(x, "ranks", tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, "ranks", 0, 0, tiled=True),
        "ppermute": lambda x: lax.ppermute(x, "ranks", ring),
    }
    rows = []
    for name, operation in operations.items():
        for total in SIZES:
            # The size is that of a rank's input, and of the output for all_gather.
            elements = total // 4 // (size if name == "all_gather" else 1)
            if elements == 0 or name in ("psum_scatter", "all_to_all") and elements < size:
                continue
            mapped = jax.jit(
                jax.shard_map(operation, mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks"), check_vma=False)
            )
            local = np.ones(elements, np.float32)
            value = jax.make_array_from_process_local_data(NamedSharding(mesh, P("ranks")), local)
            rows.append((name, total, median(lambda: mapped(value).block_until_ready(), total)))
    if rank == 0:
        with open(path, "w") as file:
            csv.writer(file).writerows(rows)


def median(call, size: int) -> float:
    """Returns the median time of some calls."""
    for _ in range(3):
        call()
    calls = 100 if size <= 1 << 16 else max(8, (32 << 20) // size)
    times = []
    for _ in range(min(calls, 100)):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def launch(options: argparse.Namespace, ranks: int, kind: str, program: list[str]) -> None:
    environment = {**os.environ, **ENVIRONMENTS.get(kind, {})}
    if KINDS[kind] == "mpi":
        environment["MPITRAMPOLINE_LIB"] = options.library
    command = [options.unisono, "run", "-n", str(ranks), "--", sys.executable, *program]
    subprocess.run(command, env=environment, check=True, timeout=600, stdout=subprocess.DEVNULL)


def step_time(options: argparse.Namespace, ranks: int, kind: str) -> float:
    """Returns the median time of a step of the training program."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        launch(options, ranks, kind, [str(PROGRAMS / "train.py"), KINDS[kind], folder, str(STEPS)])
        times = np.load(f"{folder}/train-{KINDS[kind]}-{ranks}-0.npz")["seconds"]
    return float(np.median(times[5:]))


def order(number: int) -> list[str]:
    """Returns the kinds, beginning with another one in each round."""
    kinds = list(KINDS)
    return kinds[number % len(kinds) :] + kinds[: number % len(kinds)]


def compare(options: argparse.Namespace) -> None:
    path = HERE / f"results{background_load.suffix(options)}.csv"
    with open(path, "w") as file, tempfile.TemporaryDirectory() as folder, background_load.busy_loops(options):
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["round", "ranks", "library", "operation", "bytes", "seconds", "load"])
        for number in range(options.rounds):
            for ranks in RANKS:
                for kind in order(number):
                    path = f"{folder}/rows.csv"
                    launch(options, ranks, kind, [__file__, "measure", KINDS[kind], path])
                    load = f"{os.getloadavg()[0]:.1f}"
                    with open(path) as rows:
                        for row in csv.reader(rows):
                            out.writerow([number, ranks, kind, *row, load])
                    out.writerow([number, ranks, kind, "training step", 0, step_time(options, ranks, kind), load])
                    file.flush()


def label(size: int) -> str:
    for unit, shift in (("MiB", 20), ("KiB", 10), ("B", 0)):
        if size >> shift:
            return f"{size >> shift} {unit}"
    return ""


def tables() -> None:
    """Writes the tables of all files into the README, after the line that announces the first."""
    lines = []
    for path in sorted(HERE.glob("results*.csv"), key=lambda path: len(path.stem)):
        beside = path.stem.removeprefix("results").replace("-", " ")
        lines += [f"## Times{':' if beside else ''}{beside}", *tables_of(path), ""]
    readme = HERE / "README.md"
    before = readme.read_text().split("## Times\n")[0]
    readme.write_text(before + "\n".join(lines[:-1]) + "\n")


def tables_of(path: Path) -> list[str]:
    times: dict = {}
    with open(path) as file:
        for row in csv.DictReader(file):
            place = (int(row["ranks"]), row["operation"], int(row["bytes"]))
            times.setdefault(place, {}).setdefault(row["library"], []).append(float(row["seconds"]))
    lines = []
    for ranks in RANKS:
        lines += [
            f"\n### {ranks} processes\n",
            "| operation | size | unisono | unisono, `block` | Gloo | Gloo / unisono | range of the ratio |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        for (of, name, size), found in times.items():
            if of == ranks:
                ours, block, theirs = (1e6 * statistics.median(found[kind]) for kind in KINDS)
                ratios = [theirs / ours for ours, theirs in zip(found["unisono"], found["gloo"])]
                spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
                cells = f"{ours:.0f} µs | {block:.0f} µs | {theirs:.0f} µs | {theirs / ours:.2f} | {spread}"
                lines.append(f"| {name} | {label(size)} | {cells} |")
    return lines


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        measure(*sys.argv[2:])
    elif sys.argv[1] == "tables":
        tables()
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("unisono")
        parser.add_argument("library")
        parser.add_argument("rounds", type=int)
        background_load.add_options(parser)
        compare(parser.parse_args())
        tables()
