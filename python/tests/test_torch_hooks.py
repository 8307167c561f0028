"""Parts of torch that ask more of a backend than its collectives: FSDP1, debug mode, and the hooks of gradients."""

import os
import tempfile
import warnings

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as checkpoint  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from unisono import errors  # noqa: E402
from unisono.torch import _versions  # noqa: E402

from conftest import run_processes  # noqa: E402

MIXED = "cpu:unisono,cuda:gloo"
BACKENDS = ["unisono", pytest.param(MIXED, marks=pytest.mark.skipif(
    not _versions.HAS_BACKENDS, reason="this version of torch takes a Python backend only for the whole group"))]


@pytest.mark.parametrize("offload", [False, True])
def test_sharded_state_with_fewer_rows_than_ranks_is_restored(processes, offload):
    def body(rank, size):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Linear(1, 3))
        model = FullyShardedDataParallel(layers, device_id=torch.device("cpu"))
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        model(torch.ones(2, 5)).sum().backward()
        optimizer.step()
        FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
        options = StateDictOptions(cpu_offload=offload)
        folder = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folder, 0)
        expected = model(torch.ones(2, 5)).detach().clone()
        state, of_optimizer = get_state_dict(model, optimizer, options=options)
        checkpoint.save({"model": state}, checkpoint_id=folder[0])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        checkpoint.load({"model": state}, checkpoint_id=folder[0])
        set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=of_optimizer, options=options)
        assert torch.equal(model(torch.ones(2, 5)), expected)
        for tensor in state.values():
            assert tensor.device.type == "cpu" and tensor.to("cpu") is not None

    processes(2, body)


@pytest.mark.parametrize("backend", BACKENDS)
def test_debug_mode_names_what_differs(processes, monkeypatch, backend):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")

    def body(rank, size):
        dist.set_debug_level_from_env()
        group = dist.new_group(backend=backend)
        values = torch.ones(3)
        dist.all_reduce(values, group=group)
        dist.broadcast(values, 0, group=group)
        dist.barrier(group=group)
        assert values.tolist() == [size] * 3
        with pytest.raises(RuntimeError, match="(?i)mismatch|rank . called"):
            dist.all_reduce(torch.ones(3 + rank), group=group)

    processes(2, body, backend)


def register_bf16(model):
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)


def register_power_sgd(model):
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)


HOOKS = {
    "built-in all_reduce": lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
    "built-in fp16": lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
    "fp16": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "bf16": register_bf16,
    "power sgd": register_power_sgd,
    "quantized": lambda model: model.register_comm_hook(None, quantization_hooks.quantization_pertensor_hook),
}


def losses(hook, rank):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model = DistributedDataParallel(layers)
    HOOKS[hook](model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(rank)
    found = []
    for _ in range(5):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_gradients_take_the_steps_of_gloo(backend):
    def steps(of_backend):
        with tempfile.TemporaryDirectory() as folder:

            def body(rank, size):
                torch.save({hook: losses(hook, rank) for hook in HOOKS}, f"{folder}/{rank}")

            run_processes(2, body, of_backend)
            return [torch.load(f"{folder}/{rank}") for rank in range(2)]

    seen, expected = steps(backend), steps("gloo")
    for rank in range(2):
        for hook in HOOKS:
            assert seen[rank][hook] == pytest.approx(expected[rank][hook], rel=1e-4), hook


def test_failure_reaches_the_backward_pass_of_the_built_in_hook(processes):
    def body(rank, size):
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        HOOKS["built-in fp16"](model)
        loss = model(torch.ones(2, 4)).sum()
        if rank == 1:
            os._exit(0)
        with pytest.raises(errors.PeerFailed, match="rank 1 is gone"):
            loss.backward()
        os._exit(0)

    processes(2, body)


def test_future_of_halves_completes_later_for_others(processes):
    """Only the built-in hook waits for its future."""

    def body(rank, size):
        if rank == 1:
            dist.recv(torch.zeros(1), 0)
        future = dist.all_reduce(values := torch.ones(4, dtype=torch.float16), async_op=True).get_future()
        if rank == 0:
            assert not future.done()
            dist.send(torch.zeros(1), 1)
        assert future.wait()[0] is values and values.tolist() == [2] * 4

    processes(2, body)
