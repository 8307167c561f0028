"""Groups that are made of other groups: split, merged, shrunk and reconfigured, and operations as one."""

import signal
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from unisono.errors import InvalidUsage, Mismatch  # noqa: E402
from unisono.torch._versions import HAS_BACKENDS  # noqa: E402

pytestmark = pytest.mark.skipif(not HAS_BACKENDS, reason="no Python class can be a backend in this version of torch")


def summed(value, group=None):
    tensor = torch.full((3,), float(value))
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


@pytest.mark.parametrize("backend", ["gloo", "unisono"])
def test_split_group_keeps_order_and_leaves_others_out(processes, backend):
    def body(rank, size):
        part = dist.split_group(split_ranks=[[2, 0], [1]])
        if rank == 3:
            assert part is dist.GroupMember.NON_GROUP_MEMBER
        else:
            assert dist.get_rank(part) == {2: 0, 0: 1, 1: 0}[rank]
            assert dist.get_process_group_ranks(part) == ([1] if rank == 1 else [2, 0])
            assert summed(rank + 1, part) == (2 if rank == 1 else 4)
            tensor = torch.full((2,), float(rank))
            dist.broadcast(tensor, group=part, group_src=0)
            assert tensor[0] == (1 if rank == 1 else 2)
            work = dist.all_reduce(torch.ones(2), group=part, async_op=True)
            work.wait()
            assert work.is_completed()
            assert dist.get_backend(part) == backend
        assert summed(1) == size
        if backend == "unisono":
            whole = dist.split_group(split_ranks=[[3, 2, 1, 0]], timeout=timedelta(seconds=7))
            assert dist.get_rank(whole) == 3 - rank and whole._unisono._comm.timeout == 7
            half = dist.split_group(parent_pg=whole, split_ranks=[[0, 1], [2, 3]])
            assert summed(rank, half) == (5 if rank >= 2 else 1)

    processes(4, body, backend)
