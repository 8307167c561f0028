"""Programs that use ``torch.distributed``, each with the same small transformer.

Each client is a function of a `Setting` that returns a `Client`. It knows nothing of the backend.
"""

import shutil
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Setting:
    """The size of the model, and the place of this rank."""

    vocabulary: int = 256
    dim: int = 128
    heads: int = 4
    layers: int = 4
    sequence: int = 32
    batch: int = 4
    rate: float = 0.001
    rank: int = 0
    size: int = 1

    @property
    def tokens(self):
        """The tokens of a batch."""
        return self.batch * self.sequence


@dataclass
class Client:
    """A program in steps.

    Attributes:
        step: Takes one step.
        state: Returns the tensors of this rank that both backends must agree on.
        work: What all ranks do in a step, in units.
        unit: The name of a unit.
        close: Removes what the client leaves behind.
    """

    step: Callable[[], None]
    state: Callable[[], list]
    work: int
    unit: str = "tokens"
    close: Callable[[], None] = lambda: None


class Block(nn.Module):
    """One layer of the transformer: attention, then two linear layers."""

    def __init__(self, setting):
        super().__init__()
        dim = setting.dim
        self.head_dim = dim // setting.heads
        self.before_attention, self.before_linear = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        normal = self.before_attention(x)
        heads = (
            layer(normal).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.before_linear(x))))


class Embedding(nn.Module):
    """The vectors of tokens and of their places."""

    def __init__(self, setting):
        super().__init__()
        self.token = nn.Embedding(setting.vocabulary, setting.dim)
        self.place = nn.Parameter(0.02 * torch.randn(setting.sequence, setting.dim))

    def forward(self, tokens):
        return self.token(tokens) + self.place


def transformer(setting):
    """Returns the layers of a small GPT with the same weights on all ranks."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.LayerNorm(setting.dim), nn.Linear(setting.dim, setting.vocabulary, bias=False))
    return nn.Sequential(Embedding(setting), *(Block(setting) for _ in range(setting.layers)), head)


def batches(setting, seed):
    """Returns a function that makes the next batch: tokens, and the ones that follow them."""
    generator = torch.Generator().manual_seed(seed)
    size = (setting.batch, setting.sequence + 1)

    def batch():
        tokens = torch.randint(setting.vocabulary, size, generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return batch


def loss_of(outputs, targets):
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


def sgd(model, setting):
    return torch.optim.SGD(model.parameters(), setting.rate, momentum=0.9)


def local(tensor):
    """Returns the part of a tensor that is on this rank."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def trained(model, setting, optimizer=None, seed=None):
    """Returns the client that trains a model. Ranks have data of their own without a seed."""
    optimizer = optimizer or sgd(model, setting)
    batch = batches(setting, setting.rank + 1 if seed is None else seed)

    def step():
        inputs, targets = batch()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    ranks = setting.size if seed is None else 1
    return Client(step, lambda: [local(one) for one in model.parameters()], ranks * setting.tokens)


def ddp(setting):
    return trained(DistributedDataParallel(transformer(setting)), setting)


def ddp_bf16(setting):
    model = DistributedDataParallel(transformer(setting))
    model.register_comm_hook(None, bf16_compress_hook)
    return trained(model, setting)


def sharded(setting, mesh=None):
    """Returns the transformer with the parameters of each layer split among the ranks."""
    model = transformer(setting)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2(setting):
    return trained(sharded(setting), setting)


def hsdp(setting):
    mesh = init_device_mesh("cpu", (2, setting.size // 2), mesh_dim_names=("replicate", "shard"))
    return trained(sharded(setting, mesh), setting)


def tensor_parallel(setting):
    model = transformer(setting)
    split = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
    split |= {name: RowwiseParallel() for name in ("output", "down")}
    mesh = init_device_mesh("cpu", (setting.size,))
    for block in model[1:-1]:
        parallelize_module(block, mesh, split)
    return trained(model, setting, seed=0)


def pipeline(setting):
    """One stage for each rank, and as many parts of a batch as twice the ranks."""
    parts = 2 * setting.size
    setting = replace(setting, batch=setting.batch * setting.size)
    layers = transformer(setting)
    bounds = [1 + rank * setting.layers // setting.size for rank in range(setting.size + 1)]
    bounds[0], bounds[-1] = 0, len(layers)
    own = layers[bounds[setting.rank] : bounds[setting.rank + 1]]
    stage = PipelineStage(own, setting.rank, setting.size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=parts, loss_fn=loss_of)
    optimizer, batch = sgd(own, setting), batches(setting, 0)
    is_last = setting.rank == setting.size - 1

    def step():
        inputs, targets = batch()
        schedule.step(*([inputs] if setting.rank == 0 else []), **({"target": targets} if is_last else {}))
        optimizer.step()
        optimizer.zero_grad()

    return Client(step, lambda: [one.detach() for one in own.parameters()], setting.tokens)


def zero(setting):
    model = DistributedDataParallel(transformer(setting))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=setting.rate, momentum=0.9)
    return trained(model, setting, optimizer)


def checkpoints(setting):
    """Saves the sharded transformer in memory-backed files, and loads what was saved."""
    model = sharded(setting)
    folder = [tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) if setting.rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    state = model.state_dict()
    counter = iter(range(1, 1 << 30))
    warnings.filterwarnings("ignore", "Detected an existing checkpoint")

    def step():
        number = next(counter)
        for value in state.values():
            local(value).fill_(number + setting.rank / 8)
        checkpoint.save(state, checkpoint_id=folder[0])
        for value in state.values():
            local(value).zero_()
        checkpoint.load(state, checkpoint_id=folder[0])
        for value in state.values():
            assert (local(value) == number + setting.rank / 8).all(), "a checkpoint has other values"

    def close():
        if setting.rank == 0:
            shutil.rmtree(folder[0])

    return Client(step, lambda: [local(value) for value in state.values()], 1, "checkpoints", close)


def objects(setting):
    """One call of each collective for Python objects, whose results are compared."""
    rank, size = setting.rank, setting.size
    state = [torch.zeros(size)]
    counter = iter(range(1, 1 << 30))

    def step():
        number = next(counter)
        mine = [{"rank": source, "number": number, "text": "x" * 500} for source in range(size)]
        gathered, shared, taken = [None] * size, [mine[0] if rank == 0 else None], [None]
        dist.all_gather_object(gathered, mine[rank])
        dist.broadcast_object_list(shared, 0)
        at_root = [None] * size if rank == 0 else None
        dist.gather_object(mine[rank], at_root, 0)
        dist.scatter_object_list(taken, mine if rank == 0 else None, 0)
        assert gathered == mine and shared == mine[:1] and taken == [mine[rank]], "an object differs"
        assert rank != 0 or at_root == mine, "a gathered object differs"
        state[0] += torch.tensor([float(one["number"]) for one in gathered])

    return Client(step, lambda: state, 4, "calls")


# By name: the client, and the numbers of ranks that it takes (None for all).
CLIENTS = {
    "DDP": (ddp, None),
    "DDP, bf16 hook": (ddp_bf16, None),
    "FSDP2": (fsdp2, None),
    "HSDP 2x2": (hsdp, 4),
    "TP": (tensor_parallel, None),
    "pipeline 1F1B": (pipeline, None),
    "ZeroRedundancyOptimizer": (zero, None),
    "DCP save and load": (checkpoints, None),
    "object collectives": (objects, None),
}
