"""Measures how soon training goes on after the death of a rank, with torchft, over unisono and over Gloo.

    python recovery.py --kills 1000 --out FOLDER
    python recovery.py --kills 1000 --parallel hsdp --out FOLDER

Four ranks train. One after the other is killed with signal 9, and starts again. A kill counts from the
signal to the end of the first step that all other groups of ranks take without the dead one. The
backends take turns, kill by kill. Needs `pip install torchft`.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

BACKENDS = ("gloo", "unisono")
RANKS = 4
# Seconds after which training that does not go on is taken for hanging.
LIMIT = 300.0
# Steps of all ranks between two kills, so that the group is one of all ranks again.
STEPS_BETWEEN = 5
# Seconds between two looks of torchrun at its ranks.
MONITOR_INTERVAL = 0.1
context = multiprocessing.get_context("fork")


class Step(NamedTuple):
    """A step that a rank has finished."""

    group: int
    number: int
    groups: int
    moment: float


def make_group(backend, timeout):
    """Makes the group that torchft connects anew after a death."""
    if backend == "gloo":
        from torchft.process_group import ProcessGroupGloo

        return ProcessGroupGloo(timeout=timeout)
    from unisono.torch.torchft import ProcessGroupUnisono

    return ProcessGroupUnisono(timeout=timeout)


def sharded(module, backend, group, rank, size, port):
    """Shards the parameters over the ranks of one group, as FSDP2 does, over the same backend."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    fully_shard(module, mesh=init_device_mesh("cpu", (size,)))


def train(backend, parallel, group, rank, size, ports, lighthouse, steps):
    """Trains as one rank until it is killed."""
    os.setpgrp()
    import torch
    import torch.distributed as dist
    from torchft import Manager, Optimizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.TCPStore("127.0.0.1", ports[0], is_master=rank == 0, wait_for_workers=False)
    module = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
    if parallel == "hsdp":
        sharded(module, backend, group, rank, size, ports[1])
    optimizer = torch.optim.SGD(module.parameters(), 0.01)

    def load(state):
        module.load_state_dict(state["module"])

    timeout = timedelta(seconds=20)
    manager = Manager(
        make_group(backend, timeout), load, lambda: {"module": module.state_dict()}, min_replica_size=1,
        timeout=timeout, quorum_timeout=timedelta(seconds=60), rank=rank, world_size=size, store_addr="127.0.0.1",
        store_port=store.port, lighthouse_addr=lighthouse, replica_id=f"group_{group}_",
        heartbeat_interval=timedelta(milliseconds=50),
        # A thread that reads the state of FSDP2 during a step would take away parameters in use.
        use_async_quorum=parallel == "ddp",
    )  # fmt: skip
    stepping = Optimizer(manager, optimizer)
    while True:
        stepping.zero_grad()
        module(torch.randn(16, 256)).square().mean().backward()
        # The hook of torchft's own DistributedDataParallel ends the process when an operation fails.
        for work in [manager.allreduce(_own_part(parameter.grad)) for parameter in module.parameters()]:
            work.wait()
        before = manager.current_step()
        stepping.step()
        if manager.current_step() > before and rank == 0:
            steps.put(Step(group, manager.current_step(), manager.num_participants(), time.monotonic()))


def _own_part(gradient):
    """Returns the part of a gradient that this rank has."""
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


def serve(options, pipe):
    """Runs torchft's lighthouse, which decides who takes part."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=options.join_ms, quorum_tick_ms=10,
        heartbeat_timeout_ms=options.heartbeat_ms,
    )  # fmt: skip
    pipe.send(server.address())
    signal.pause()


class Training:
    """The ranks of one backend, some of which die."""

    def __init__(self, backend, options):
        self.backend, self.options = backend, options
        self.size = 2 if options.parallel == "hsdp" else 1
        self.groups = RANKS // self.size
        self.steps, (own, other) = context.SimpleQueue(), context.Pipe()
        self.lighthouse = context.Process(target=serve, args=(options, other), daemon=True)
        self.lighthouse.start()
        self.address = own.recv()
        self.ranks = [self._start(group) for group in range(self.groups)]

    def _start(self, group):
        ports = [_free_port(), _free_port()]
        shared = (ports, self.address, self.steps)
        started = []
        for rank in range(self.size):
            arguments = (self.backend, self.options.parallel, group, rank, self.size, *shared)
            started.append(context.Process(target=train, args=arguments, daemon=True))
            started[-1].start()
        return started

    def wait_for(self, groups, members, since, number=1):
        """Returns the moment at which each of the groups has finished some steps of so many members."""
        counts, moments = dict.fromkeys(groups, 0), {}
        deadline = time.monotonic() + LIMIT
        while len(moments) < len(counts):
            dead = [process.exitcode for group in groups for process in self.ranks[group] if not process.is_alive()]
            if dead or time.monotonic() > deadline:
                raise SystemExit(f"{self.backend}: no step of {members} groups, only {counts}; ended ranks: {dead}")
            if self.steps.empty():
                time.sleep(0.0005)
                continue
            step = self.steps.get()
            if step.group in counts and step.groups == members and step.moment > since:
                counts[step.group] += 1
                if counts[step.group] == number:
                    moments[step.group] = step.moment
        return max(moments.values())

    def kill(self, generator):
        """Kills a rank, and returns the seconds until the others go on, and until all do."""
        everyone = range(self.groups)
        self.wait_for(everyone, self.groups, time.monotonic(), STEPS_BETWEEN)
        time.sleep(generator.random() * 0.05)
        victim = generator.choice(everyone)
        others = [group for group in everyone if group != victim]
        moment = time.monotonic()
        os.kill(generator.choice(self.ranks[victim]).pid, signal.SIGKILL)
        if self.size > 1:
            # A group whose rank is gone ends as a whole, as torchrun ends it when it looks next.
            time.sleep(MONITOR_INTERVAL)
        for process in self.ranks[victim]:
            process.kill()
            process.join()
        gone_on = self.wait_for(others, self.groups - 1, moment)
        self.ranks[victim] = self._start(victim)
        complete = self.wait_for(everyone, self.groups, moment)
        return gone_on - moment, complete - moment

    def end(self):
        for process in [process for ranks in self.ranks for process in ranks] + [self.lighthouse]:
            process.kill()
            process.join()


def _free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def table(rows):
    lines = [
        "| backend | kills | p50, ms | p99, ms | worst, ms | p50 until all take part again, ms |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        after, whole = ([1000 * seconds for seconds in row[key]] for key in ("gone_on", "complete"))
        lines.append(
            f"| {row['backend']} | {len(after)} | {statistics.median(after):.0f} | {percentile(after, 99):.0f} "
            f"| {max(after):.0f} | {statistics.median(whole):.0f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kills of each backend")
    parser.add_argument("--parallel", choices=["ddp", "hsdp"], default="ddp")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--heartbeat_ms", type=int, default=500, help="until the lighthouse takes a rank for dead")
    parser.add_argument("--join_ms", type=int, default=100, help="for which the lighthouse waits for late ranks")
    parser.add_argument("--block", type=int, default=5, help="kills of one backend before the other has its turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch._dynamo  # noqa: F401 - the ranks are forks, which need not import it each
    import torchft  # noqa: F401

    rows = [{"backend": backend, "gone_on": [], "complete": []} for backend in options.backends]
    for block in range(0, options.kills, options.block):
        for row in rows:
            generator = random.Random(options.seed + block)
            with ExitStack() as stack:
                training = Training(row["backend"], options)
                stack.callback(training.end)
                for _ in range(min(options.block, options.kills - block)):
                    gone_on, complete = training.kill(generator)
                    row["gone_on"].append(gone_on)
                    row["complete"].append(complete)
                    print(f"{row['backend']}: {1000 * gone_on:.0f} ms", file=sys.stderr, flush=True)
    text = f"# Recovery with torchft, {RANKS} ranks, {options.parallel.upper()}\n\n{table(rows)}"
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"recovery-{options.parallel}.md").write_text(text)
        (options.out / f"recovery-{options.parallel}.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
