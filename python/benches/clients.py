"""Compares programs that use ``torch.distributed`` over unisono and over Gloo, in one run.

    python clients.py --ranks 2 4 --rounds 9 --out FOLDER
    python clients.py --ranks 2 --busy 2 --out FOLDER

Both jobs take the same steps, in alternating rounds. At the end, every rank must have the same
parameters over both: bit by bit at 2 ranks, and within 1e-5 at more, where the order of sums differs.
"""

import math
import os
import statistics
import sys
from dataclasses import fields, replace

import report
from jobs import BACKENDS, alternate, pair, timed

WITHIN = 1e-5
# Steps before the first round, so that buffers and connections exist.
WARMUP = 3


def make(context, name, setting):
    """Makes a client on a rank and returns (work, unit) of a step."""
    from training import CLIENTS

    client = CLIENTS[name][0](replace(setting, rank=context.rank, size=context.size))
    context.client = client
    context.before = [tensor.clone() for tensor in client.state()]
    for _ in range(WARMUP):
        client.step()
    return client.work, client.unit


def steps(context, number):
    """Takes some steps; returns the seconds of this rank, and its processor time while asleep."""
    return timed(context, context.client.step, number)


def end(context):
    """Drops the client, and returns (its state as arrays, true if the steps changed it)."""
    import torch.distributed as dist

    client, before = context.client, context.before
    state = [tensor.clone() for tensor in client.state()]
    changed = any((old != new).any().item() for old, new in zip(before, state, strict=True))
    dist.barrier()
    client.close()
    del context.client, context.before
    return [tensor.numpy() for tensor in state], changed


def difference(ours, theirs):
    """Returns the greatest difference of the states of all ranks, and true if all bits are the same."""
    worst, same = 0.0, True
    for one, other in zip(ours, theirs, strict=True):
        for own, peer in zip(one, other, strict=True):
            same = same and own.tobytes() == peer.tobytes()
            gap = abs(own.astype("float64") - peer.astype("float64")).max(initial=0.0)
            worst = max(worst, float("inf") if math.isnan(gap) else float(gap))
    return worst, same


def is_right(size, worst, same):
    """Returns true if states that differ by ``worst`` are what the two backends may have."""
    return same if size == 2 else worst <= WITHIN


def compare(jobs, name, setting, rounds, number):
    """Runs one client in both jobs and returns its row."""
    size = jobs["gloo"].size
    for job in jobs.values():
        ((work, unit), *_) = job.call(make, name, setting)
    found = alternate(jobs, rounds, steps, lambda _: (number,))
    ended = {backend: job.call(end) for backend, job in jobs.items()}
    states = {backend: [state for state, _ in results] for backend, results in ended.items()}
    worst, same = difference(states["unisono"], states["gloo"])
    row = {"client": name, "ranks": size, "unit": unit, "difference": worst, "same_bits": same}
    row["changed"] = all(changed for results in ended.values() for _, changed in results)
    row["right"] = row["changed"] and is_right(size, worst, same)
    for backend in BACKENDS:
        slowest = [max(seconds for seconds, _ in ranks) for ranks in found[backend]]
        row[f"{backend}_seconds"] = [round(seconds / number, 9) for seconds in slowest]
        row[backend] = statistics.median(number * work / seconds for seconds in slowest)
        # The first sleep of a client is that of the making of the other one's.
        row[f"{backend}_asleep"] = max(asleep for ranks in found[backend][1:] for _, asleep in ranks)
    row["ratio"] = row["unisono"] / row["gloo"]
    return row


def is_step(row):
    return row["unit"] == "tokens"


def table(rows):
    """Returns the rows as a table of Markdown, with the means of the ratios below it."""
    lines = [
        "| client | ranks | unit | Gloo, units/s | unisono, units/s | ratio | range | difference |",
        "|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        gap = "none" if row["same_bits"] else f"{row['difference']:.1e}"
        lines.append(
            f"| {row['client']} | {row['ranks']} | {row['unit']} | {row['gloo']:.0f} | {row['unisono']:.0f} "
            f"| {row['ratio']:.2f} | {report.spread(row)} | {gap if row['right'] else f'WRONG: {gap}'} |"
        )
    lines.append("")
    lines += report.means([row for row in rows if is_step(row)], ", training steps")
    return "\n".join(lines) + "\n"


def arguments():
    from training import CLIENTS, Setting

    parser = report.parser(__doc__, "clients")
    parser.add_argument("--steps", type=int, default=10, help="steps of a round")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS), metavar="CLIENT")
    for field in fields(Setting):
        if field.name not in ("rank", "size"):
            parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return parser.parse_args()


def main():
    from training import CLIENTS, Setting

    options = arguments()
    names = [field.name for field in fields(Setting) if field.name not in ("rank", "size")]
    setting = Setting(**{name: getattr(options, name) for name in names})
    rows = []
    for ranks in options.ranks:
        with pair(ranks) as jobs, report.background_load.busy_loops(options):
            for name in options.clients:
                if CLIENTS[name][1] in (None, ranks):
                    row = compare(jobs, name, setting, options.rounds, options.steps)
                    print(f"{name}, {ranks} ranks: {row['ratio']:.2f}", file=sys.stderr, flush=True)
                    rows.append(row)
    title = f"Clients: {options.rounds} rounds of {options.steps} steps, {report.background_load.words(options)}"
    report.write(options, "clients", title, table(rows), rows)
    wrong = [f"{row['client']} at {row['ranks']} ranks" for row in rows if not row["right"]]
    sys.exit(f"the backends disagree: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
