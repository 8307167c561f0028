"""Trains a small model with DistributedDataParallel over unisono.

    torchrun --nproc-per-node 4 examples/train.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("unisono")
torch.manual_seed(0)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
weights = torch.randn(32, 1)
torch.manual_seed(dist.get_rank())  # Every rank has data of its own.
for step in range(101):
    inputs = torch.randn(64, 32)
    loss = (model(inputs) - inputs @ weights).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean.item():.3f} on {dist.get_world_size()} ranks", flush=True)
dist.destroy_process_group()
