"""Times the all_reduces of one token of a model whose layers are split over ranks, over unisono and over Gloo.

    python inference.py --ranks 2 4 --rounds 9 --out FOLDER

A layer of a transformer sums twice over the ranks of tensor parallelism, so a model of 48 layers makes 96
all_reduces, one after the other, for each token. A sum has the bytes of one hidden state in bfloat16 for each
sequence of the batch: 10 KiB for 5,120 elements and one sequence. Every round begins with a token whose sums
are compared with what they must be.
"""

import os
import sys

import report
from jobs import measure, pair, timed

SIZES = [10 << 10, 32 << 10, 100 << 10]
# Seconds that the tokens of a round take, about.
AIM = 0.05
MAX_TOKENS = 100


class Token:
    """The sums of one token on a rank. The elements are small whole numbers, so that sums are exact."""

    def __init__(self, sums, elements, rank, size):
        import torch

        self.rank, self.size = rank, size
        self.place = torch.arange(elements).remainder(31).to(torch.bfloat16)
        self.hidden = [torch.zeros(elements, dtype=torch.bfloat16) for _ in range(sums)]

    def generate(self):
        """Sums every hidden state over the ranks; the next one begins when the last one has ended."""
        import torch.distributed as dist

        for hidden in self.hidden:
            dist.all_reduce(hidden)

    def verify(self):
        """Sums numbers that tell ranks and places, and compares the results."""
        import torch

        for hidden in self.hidden:
            hidden.copy_(self.place + self.rank)
        self.generate()
        expected = self.place * self.size + sum(range(self.size))
        wrong = sum(not torch.equal(hidden, expected) for hidden in self.hidden)
        assert wrong == 0, f"{wrong} of {len(self.hidden)} sums are wrong on rank {self.rank}"
        for hidden in self.hidden:
            hidden.zero_()


def make(context, sums, elements):
    """Makes the tensors, and returns the seconds of a token after the first ones."""
    context.token = Token(sums, elements, context.rank, context.size)
    context.token.verify()
    return timed(context, context.token.generate, 2)[0] / 2


def tokens(context, number):
    """Verifies one token and times some; returns the seconds of this rank."""
    context.token.verify()
    return timed(context, context.token.generate, number)[0]


def table(rows):
    """Returns the rows as a table of Markdown, with the means of the ratios below it."""
    lines = ["| ranks | a sum | Gloo, a token | unisono, a token | ratio | range |", "|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        lines.append(
            f"| {row['ranks']} | {row['bytes'] >> 10} KiB | {1e3 * row['gloo']:.2f} ms "
            f"| {1e3 * row['unisono']:.2f} ms | {row['ratio']:.2f} | {report.spread(row)} |"
        )
    return "\n".join([*lines, "", *report.means(rows)]) + "\n"


def main():
    parser = report.parser(__doc__, "inference")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    parser.add_argument("--sums", type=int, default=96, help="all_reduces a token")
    options = parser.parse_args()
    rows = []
    for ranks in options.ranks:
        with pair(ranks) as jobs, report.background_load.busy_loops(options):
            for size in options.sizes:
                row = measure(jobs, options.rounds, AIM, MAX_TOKENS, make, tokens, options.sums, size // 2)
                rows.append({"sums": options.sums, "bytes": size, **row})
                print(f"{ranks} ranks, {size} B: {rows[-1]['ratio']:.2f}", file=sys.stderr, flush=True)
    title = f"All_reduces of a token: {options.rounds} rounds, {report.background_load.words(options)}"
    report.write(options, "inference", title, table(rows), rows)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
