"""Options, tables and files of the comparisons."""

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benches/support"))
import background_load  # noqa: E402


def mean_and_worst(ratios):
    """Returns words on the geometric mean and the least of some ratios."""
    return f"geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f} ({len(ratios)} rows)"


def parser(doc, files):
    """Returns a parser with the options of every comparison, which writes these files."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=9)
    background_load.add_options(parser)
    parser.add_argument("--out", type=Path, help=f"a folder for {files}.json and {files}.md")
    parser.add_argument("--note", default="", help="words about the machine, for the files")
    return parser


def means(rows, what=""):
    """Returns a line with the mean of the ratios for each number of ranks."""
    lines = []
    for ranks in sorted({row["ranks"] for row in rows}):
        ratios = [row["ratio"] for row in rows if row["ranks"] == ranks]
        lines.append(f"- {ranks} ranks{what}: {mean_and_worst(ratios)}")
    return lines


def command():
    """Returns the command of this run, without the folder and the words for its files."""
    known = argparse.ArgumentParser(add_help=False)
    known.add_argument("--out"), known.add_argument("--note")
    _, rest = known.parse_known_args(sys.argv[1:])
    return f"python {shlex.join([os.path.basename(sys.argv[0]), *rest])}"


def spread(row):
    """Returns the least and the greatest ratio of a round."""
    ratios = [theirs / ours for ours, theirs in zip(row["unisono_seconds"], row["gloo_seconds"], strict=True)]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def processor():
    """Returns the name of the processor, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def facts(options):
    """Returns what a reader must know of a run."""
    import torch

    return {
        "unisono": version("unisono"),
        "torch": torch.__version__,
        "gloo": f"the one inside torch, revision {torch.version.git_version}",
        "python": platform.python_version(),
        "processors": f"{os.cpu_count()} of {processor()}",
        "system": f"{platform.system()} {platform.release()}",
        "load": [round(load, 1) for load in os.getloadavg()],
        "command": command(),
        "note": options.note,
    }


def write(options, name, title, table, rows):
    """Prints a table, and writes it and the rows to the folder that the options name."""
    found = facts(options)
    lines = [f"{key}: {value}" for key, value in found.items() if value]
    text = f"## {title}\n\n{table}\n" + "".join(f"- {line}\n" for line in lines)
    print(text)
    if options.out is None:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    name += background_load.suffix(options)
    (options.out / f"{name}.md").write_text(text)
    lines = ",\n".join(json.dumps(row) for row in rows)
    (options.out / f"{name}.json").write_text(f'{{"run": {json.dumps(found)},\n"rows": [\n{lines}\n]}}\n')
