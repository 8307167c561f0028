"""Trains a small model on data-parallel ranks and saves each loss: `train.py IMPLEMENTATION FOLDER [STEPS]`."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ranks import join

LAYERS = (64, 256, 256, 10)
BATCH = 32


def initial() -> list:
    numbers = np.random.default_rng(0)
    layer = lambda *shape: (numbers.normal(size=shape) / shape[0] ** 0.5).astype(np.float32)
    return [(layer(*shape), np.zeros(shape[1], np.float32)) for shape in zip(LAYERS, LAYERS[1:])]


def loss_of(parameters, inputs, labels):
    *hidden, (last, bias) = parameters
    for weight, shift in hidden:
        inputs = jnp.tanh(inputs @ weight + shift)
    scores = jax.nn.log_softmax(inputs @ last + bias)
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))


def step(parameters, inputs, labels):
    """One step on this rank's part of the batch: `pmean` makes the gradients those of the whole."""
    loss, gradients = jax.value_and_grad(loss_of)(parameters, inputs, labels)
    loss, gradients = lax.pmean((loss, gradients), "ranks")
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), loss


def main() -> None:
    implementation, folder = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 30
    rank, size = join(implementation)
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    sharded = NamedSharding(mesh, P("ranks"))
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), P("ranks"), P("ranks")), out_specs=(P(), P()), check_vma=False
    )
    train = jax.jit(mapped)
    place = lambda x: jax.make_array_from_process_local_data(NamedSharding(mesh, P()), x)
    parameters = jax.tree.map(place, initial())
    numbers = np.random.default_rng(rank)
    inputs = numbers.normal(size=(BATCH, LAYERS[0])).astype(np.float32)
    labels = (inputs[:, :10].argmax(axis=1)).astype(np.int32)
    batch = [jax.make_array_from_process_local_data(sharded, part) for part in (inputs, labels)]
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        parameters, loss = train(parameters, *batch)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - start)
    weights = np.concatenate([np.ravel(leaf.addressable_data(0)) for leaf in jax.tree.leaves(parameters)])
    np.savez(f"{folder}/train-{implementation}-{size}-{rank}.npz", losses=losses, weights=weights, seconds=seconds)


main()
