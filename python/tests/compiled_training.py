"""Short trainings of compiled models, which return their losses."""

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 4
TRAININGS = {}


def training(make):
    TRAININGS[make.__name__] = make


def compiled(model, **settings):
    return torch.compile(model, backend="eager", **settings)


def layers(norm=False):
    between = [nn.BatchNorm1d(32)] if norm else []
    return nn.Sequential(nn.Linear(16, 32), *between, nn.ReLU(), nn.Linear(32, 16))


def losses(name, rank, size):
    """Returns the losses of a training on one rank. Inputs are other ones on each rank, unless ranks share layers."""
    torch.manual_seed(0)
    model = TRAININGS[name](rank, size)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(0 if "tensor_parallel" in name else rank)

    def take_step(inputs):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    take_step = compiled(take_step) if name.endswith("whole_step") else take_step
    rows = [8 + 2 * step * name.endswith("dynamic") for step in range(STEPS)]
    return [round(take_step(torch.randn(count, 16)).item(), 5) for count in rows]


@training
def data_parallel_with_batch_norm(rank, size):
    return compiled(DistributedDataParallel(layers(norm=True)))


@training
def data_parallel_whole_step(rank, size):
    return DistributedDataParallel(layers(norm=True))


@training
def data_parallel_of_compiled_layers(rank, size):
    return DistributedDataParallel(compiled(layers(norm=True)))


@training
def data_parallel_dynamic(rank, size):
    return compiled(DistributedDataParallel(layers(norm=True)), dynamic=True)


@training
def data_parallel_with_hook(rank, size):
    model = DistributedDataParallel(layers())
    model.register_comm_hook(None, bf16_compress_hook)
    return compiled(model)


@training
def fully_sharded(rank, size):
    model = nn.Sequential(layers(), layers())
    for layer in model:
        fully_shard(layer)
    return compiled(fully_shard(model))


@training
def fully_sharded_compiled_layers(rank, size):
    model = nn.Sequential(layers(), layers())
    for layer in model:
        layer.compile(backend="eager")
        fully_shard(layer)
    return fully_shard(model)


def split_layers(mesh):
    return parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


@training
def tensor_parallel(rank, size):
    return compiled(split_layers(init_device_mesh("cpu", (size,))))


@training
def tensor_parallel_dynamic(rank, size):
    return compiled(split_layers(init_device_mesh("cpu", (size,))), dynamic=True)


@training
def tensor_parallel_and_fully_sharded(rank, size):
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("data", "tensor"))
    return compiled(fully_shard(split_layers(mesh["tensor"]), mesh=mesh["data"]))
