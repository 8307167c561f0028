"""Times single collectives through ``torch.distributed`` over unisono and over Gloo, in one run.

    python collectives.py --ranks 2 4 --rounds 9 --out FOLDER

A size is that of the larger one of a rank's input and output, at least one element for each rank.
Every round begins with a call whose result is compared with what it must be.
"""

import os
import sys

import report
from jobs import measure, pair, timed

SIZES = [4 << (3 * power) for power in range(8)] + [32 << 20]
# Seconds that the calls of a round take, about.
AIM = 0.02
MAX_CALLS = 1000


class Case:
    """One collective with its tensors on a rank.

    The elements are small whole numbers, so that sums are exact in any order.
    """

    def __init__(self, name, count, rank, size):
        import torch

        self.name, self.rank, self.size = name, rank, size
        self.share = max(1, count // size)
        one_buffer = name in ("all_reduce", "broadcast", "reduce", "send and recv")
        self.count = max(1, count) if one_buffer else self.share * size
        self.full, self.part = torch.zeros(self.count), torch.zeros(self.share)
        self.other = torch.zeros(self.count)
        self.parts, self.others = list(self.full.chunk(size)), list(self.other.chunk(size))
        self.call = getattr(self, "_" + name.replace(" ", "_"))

    def _all_reduce(self):
        _dist().all_reduce(self.full)

    def _all_gather_into_tensor(self):
        _dist().all_gather_into_tensor(self.full, self.part)

    def _all_gather(self):
        _dist().all_gather(self.parts, self.part)

    def _reduce_scatter_tensor(self):
        _dist().reduce_scatter_tensor(self.part, self.full)

    def _broadcast(self):
        _dist().broadcast(self.full, 0)

    def _reduce(self):
        _dist().reduce(self.full, 0)

    def _gather(self):
        _dist().gather(self.part, self.parts if self.rank == 0 else None, 0)

    def _scatter(self):
        _dist().scatter(self.part, self.parts if self.rank == 0 else None, 0)

    def _all_to_all_single(self):
        _dist().all_to_all_single(self.other, self.full)

    def _send_and_recv(self):
        """Sends to the partner and receives from it, there and back."""
        partner = self.rank ^ 1
        if self.rank < partner:
            _dist().send(self.full, partner)
            _dist().recv(self.other, partner)
        else:
            _dist().recv(self.other, partner)
            _dist().send(self.full, partner)

    def _barrier(self):
        _dist().barrier()

    def verify(self):
        """Makes a call on numbers that tell ranks and places, and compares its result."""
        import torch

        place = torch.arange(self.count).remainder(251).float()
        # What rank r has in its full buffer is place + r, and 7 * r + 1 in its part.
        self.full.copy_(place + self.rank)
        self.part.fill_(7 * self.rank + 1)
        self.other.fill_(-1)
        self.call()
        for found, expected in self._expected(place):
            assert torch.equal(found, expected), f"{self.name} of {self.count} elements is wrong on rank {self.rank}"
        for tensor in (self.full, self.part, self.other):
            tensor.zero_()

    def _expected(self, place):
        """Returns pairs of a tensor and the contents that it must have."""
        import torch

        sums = place * self.size + sum(range(self.size))
        gathered = torch.cat([torch.full((self.share,), 7.0 * source + 1) for source in range(self.size)])
        own = slice(self.rank * self.share, (self.rank + 1) * self.share)
        at_root = self.rank == 0
        if self.name == "all_reduce" or self.name == "reduce" and at_root:
            return [(self.full, sums)]
        if self.name.startswith("all_gather") or self.name == "gather" and at_root:
            return [(self.full, gathered)]
        if self.name == "reduce_scatter_tensor":
            return [(self.part, sums[own])]
        if self.name == "broadcast":
            return [(self.full, place)]
        if self.name == "scatter":
            return [(self.part, place[own])]
        if self.name == "all_to_all_single":
            return [(self.others[source], place[own] + source) for source in range(self.size)]
        if self.name == "send and recv":
            return [(self.other, place + (self.rank ^ 1))]
        return []  # A barrier, and ranks other than the root.


COLLECTIVES = [
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "reduce", "gather", "scatter",
    "all_to_all_single", "all_gather", "send and recv", "barrier",
]  # fmt: skip


def _dist():
    import torch.distributed

    return torch.distributed


def make(context, name, count):
    """Makes the tensors, and returns the seconds of a call after the first ones."""
    context.case = Case(name, count, context.rank, context.size)
    for _ in range(3):
        context.case.verify()
    calls = 1 if count > 1 << 20 else 5
    return timed(context, context.case.call, calls)[0] / calls


def calls(context, number):
    """Verifies one call and times some; returns the seconds of this rank."""
    context.case.verify()
    return timed(context, context.case.call, number)[0]


def label(size):
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size >> shift:
            return f"{size >> shift} {unit}"
    return f"{size} B" if size else ""


def table(rows):
    """Returns the rows as a table of Markdown, with the means of the ratios below it."""
    lines = [
        "| collective | ranks | size | Gloo | unisono | ratio | range |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['collective']} | {row['ranks']} | {label(row['bytes'])} | {1e6 * row['gloo']:.1f} µs "
            f"| {1e6 * row['unisono']:.1f} µs | {row['ratio']:.2f} | {report.spread(row)} |"
        )
    lines.append("")
    lines += report.means(rows)
    lines.append(f"- all: {report.mean_and_worst([row['ratio'] for row in rows])}")
    return "\n".join(lines) + "\n"


def main():
    parser = report.parser(__doc__, "collectives")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES, metavar="NAME")
    options = parser.parse_args()
    rows = []
    for ranks in options.ranks:
        with pair(ranks) as jobs, report.background_load.busy_loops(options):
            for name in options.collectives:
                for size in [0] if name == "barrier" else options.sizes:
                    row = measure(jobs, options.rounds, AIM, MAX_CALLS, make, calls, name, size // 4)
                    rows.append({"collective": name, "bytes": size, **row})
                    print(f"{name}, {ranks} ranks, {size} B: {rows[-1]['ratio']:.2f}", file=sys.stderr, flush=True)
    title = f"Collectives: {options.rounds} rounds, {report.background_load.words(options)}"
    report.write(options, "collectives", title, table(rows), rows)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
