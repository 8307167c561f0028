"""Joins JAX processes that a launcher started: `unisono run`, torchrun, or variables set by hand."""

import os

import jax


def join(implementation: str) -> tuple[int, int]:
    """Joins the processes and returns the rank and the number of ranks.

    The launcher sets `RANK` and `WORLD_SIZE`. The coordinator of JAX listens on a port of its own:
    `JAX_COORDINATOR_ADDRESS`, or the `MASTER_PORT` that `unisono run` leaves free.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", implementation)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(os.environ.get("JAX_COORDINATOR_ADDRESS", master), size, rank)
    return rank, size
