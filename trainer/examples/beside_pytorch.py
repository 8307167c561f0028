"""Compares training steps (forward, backward, AdamW) of a GPT with PyTorch, in turns, one thread per rank.

Arguments: the example beside_pytorch, built; rounds; layers, … ; `--busy 2` for two processes that spin beside them.
`beside_pytorch.sh` builds it. All programs stay alive, and wait for a line when it is not their turn. Ranks are processes: over shared memory here, with DDP over Gloo in PyTorch.
"""

import argparse
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benches/support"))
import background_load  # noqa: E402

STEPS = 5
TOKENS = 8 * 128


def torch_worker(kind, layers, steps):
    """The counterpart of beside_pytorch.rs."""
    import torch
    from gpt_step import Gpt, batch

    torch.set_num_threads(1)
    model = Gpt(layers)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.02)
    module = model
    if kind == "ddp":
        torch.distributed.init_process_group("gloo")
        module = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs, targets = batch()
    for _ in sys.stdin:
        begun = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=kind != "ddp")
            loss = module(inputs, targets)
            loss.backward()
            optimizer.step()
        print((time.perf_counter() - begun) * 1e3 / steps, loss.item(), flush=True)


class Contestant:
    """Processes that run steps on request."""

    def __init__(self, command, ranks):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        common |= {"UNISONO_SECRET": secrets.token_hex(32), "OMP_NUM_THREADS": "1"}
        start = lambda rank: subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | common | {"RANK": str(rank)}
        )
        self.ranks = [start(rank) for rank in range(ranks)]

    def round(self):
        """Returns the milliseconds of a step of the slowest rank."""
        for process in self.ranks:
            process.stdin.write("go\n")
            process.stdin.flush()
        return max(float(process.stdout.readline().split()[0]) for process in self.ranks)


def main(options):
    ours, theirs = options.program, [sys.executable, __file__, "--worker"]
    table = []
    for layers in options.layers:
        suffix = [str(layers), str(STEPS)]
        contestants = {
            "by hand": Contestant([ours, "local", *suffix], 1),
            "strategy": Contestant([ours, "alone", *suffix], 1),
            "PyTorch": Contestant([*theirs, "alone", *suffix], 1),
            "2 ranks": Contestant([ours, "bucketed", *suffix], 2),
            "DDP": Contestant([*theirs, "ddp", *suffix], 2),
        }
        for contestant in contestants.values():
            contestant.round()
        times = {name: [] for name in contestants}
        with background_load.busy_loops(options):
            for _ in range(options.rounds):
                for name, contestant in contestants.items():
                    times[name].append(contestant.round())
        for contestant in contestants.values():
            for process in contestant.ranks:
                process.stdin.close()
        table.append((layers, times))
    if options.busy:
        print(f"Beside {background_load.words(options)}.\n")
    report(table)


def report(table):
    """Returns the medians over the rounds, also of ratios."""
    print("| layers | by hand, ms | strategy, ms | strategy / by hand | PyTorch, ms | strategy / PyTorch "
          "| 2 ranks, tokens/s | DDP, tokens/s | ours / DDP |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for layers, times in table:
        hand, alone, torch, two, ddp = (statistics.median(of) for of in times.values())
        ratio = lambda one, other: statistics.median(a / b for a, b in zip(times[one], times[other]))
        speed = lambda ms: 2 * TOKENS / ms * 1e3
        print(f"| {layers} | {hand:.1f} | {alone:.1f} | {ratio('strategy', 'by hand'):.3f} "
              f"| {torch:.1f} | {ratio('strategy', 'PyTorch'):.2f} "
              f"| {speed(two):.0f} | {speed(ddp):.0f} | {ratio('DDP', '2 ranks'):.2f} |")


if sys.argv[1] == "--worker":
    torch_worker(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
else:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("rounds", type=int)
    parser.add_argument("layers", type=int, nargs="+")
    background_load.add_options(parser)
    main(parser.parse_args())
