"""Runs collectives of JAX on one rank and saves their results: `collectives.py IMPLEMENTATION FOLDER`."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ranks import join


def values(rank: int, shape: tuple[int, ...], dtype) -> np.ndarray:
    """Returns values that differ from rank to rank and whose sums and products are exact."""
    numbers = np.random.default_rng(rank).integers(-3, 4, shape)
    if np.dtype(dtype) == np.bool_:
        return numbers > 0
    if np.issubdtype(dtype, np.unsignedinteger):
        numbers = abs(numbers)
    if np.issubdtype(dtype, np.complexfloating):
        return (numbers + 1j * np.flip(numbers)).astype(dtype)
    return numbers.astype(dtype)


def ring(size: int) -> list[tuple[int, int]]:
    return [(rank, (rank + 1) % size) for rank in range(size)]


def operations(size: int) -> dict:
    """Returns the collectives by name: each maps a rank's values to a rank's result."""
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    tiled = {"tiled": True}
    return {
        "psum": lambda x: lax.psum(x, "ranks"),
        "pmax": lambda x: lax.pmax(x, "ranks"),
        "pmin": lambda x: lax.pmin(x, "ranks"),
        "all_gather": lambda x: lax.all_gather(x, "ranks"),
        "psum_scatter": lambda x: lax.psum_scatter(x, "ranks", **tiled),
        "all_to_all": lambda x: lax.all_to_all(x, "ranks", 0, 0, **tiled),
        "ppermute_ring": lambda x: lax.ppermute(x, "ranks", ring(size)),
        "ppermute_partial": lambda x: lax.ppermute(x, "ranks", [(size - 1, 0)]),
        "ppermute_self": lambda x: lax.ppermute(x, "ranks", [(0, 0), (1, 1)]),
        "psum_halves": lambda x: lax.psum(x, "ranks", axis_index_groups=halves),
        "all_gather_halves": lambda x: lax.all_gather(x, "ranks", axis_index_groups=halves),
    }


def run(mesh: Mesh, rank: int, operation, local: np.ndarray) -> np.ndarray:
    """Runs an operation on every rank's values and returns this rank's result."""
    sharding = NamedSharding(mesh, P("ranks"))
    mapped = jax.jit(
        jax.shard_map(operation, mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks"), check_vma=False)
    )
    array = jax.make_array_from_process_local_data(sharding, local)
    return np.asarray(mapped(array).addressable_data(0))


def main() -> None:
    implementation, folder = sys.argv[1:]
    rank, size = join(implementation)
    jax.config.update("jax_enable_x64", True)
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    results = {}
    everything = operations(size)
    reductions = [name for name in everything if name.startswith(("psum", "pmax", "pmin"))]
    types = "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float32 float64 complex64 complex128 bool"
    for dtype in [*types.split(), "float16", "bfloat16"]:
        for name in everything if dtype in ("uint8", "float32", "complex128") else reductions[: 4 if size == 2 else 1]:
            local = values(rank, (size * 6, 5), jnp.dtype(dtype))
            try:
                found = run(mesh, rank, everything[name], local)
            except Exception as error:
                found = np.array(f"{type(error).__name__}: {error}")
            results[f"{name} {dtype}"] = found.astype(np.float32) if found.dtype == jnp.bfloat16 else found
    for length in [0, 1, 7, 1000, 300_001]:
        local = values(rank, (size * length,), np.float32)
        results[f"psum of {length}"] = run(mesh, rank, everything["psum"], local)
        results[f"all_gather of {length}"] = run(mesh, rank, everything["all_gather"], local)
    np.savez(f"{folder}/collectives-{implementation}-{size}-{rank}.npz", **results)


main()
