"""torch.compile around the backend: the answers of compiled functions are those that they have over Gloo."""

import functools
import gc
import json
import tempfile
import types

import pytest

torch = pytest.importorskip("torch")
import torch._dynamo  # noqa: E402 - before ranks are forked
import torch.distributed as dist  # noqa: E402

import unisono.torch  # noqa: E402, F401
from unisono.torch import _versions  # noqa: E402

import collective_calls  # noqa: E402
import compiled_training  # noqa: E402
from conftest import run_processes  # noqa: E402

SIZE = 2
MIXED = "cpu:unisono,cuda:fake"
BACKENDS = ["unisono", pytest.param(MIXED, marks=pytest.mark.skipif(
    not _versions.HAS_BACKENDS, reason="this version of torch takes a Python backend only for the whole group"))]
# The rows of the tensor in each step. Those of the first two steps decide whether torch keeps them symbolic.
ROWS = {"static": [4, 4, 4], "dynamic": [4, 6, 8]}

KNOWN = {name: function for name, function in {**collective_calls.CALLS, **collective_calls.FUNCTIONAL}.items()
         if name in collective_calls.FUNCTIONAL or hasattr(dist, name.split("__")[0])}  # fmt: skip


def chunks(names, count):
    names = tuple(names)
    return [names[begin : begin + count] for begin in range(0, len(names), count)]


def edges(names):
    return f"{names[0]}-{names[-1]}"


def of_ranks(backend, answer, names):
    """Returns what each rank answers in a group: for each name, a value or the text of the error."""
    with tempfile.TemporaryDirectory() as folder:

        def body(rank, size):
            answers = {}
            for name in names:
                torch._dynamo.reset()
                try:
                    answers[name] = answer(name, rank, size)
                except Exception as error:
                    if "unisono" in backend:
                        raise
                    answers[name] = f"refused: {error}"
            with open(f"{folder}/{rank}", "w") as file:
                json.dump(answers, file)

        run_processes(SIZE, body, backend, timeout=120, limit=600)  # A busy machine compiles for long.
        return [json.load(open(f"{folder}/{rank}")) for rank in range(SIZE)]


@functools.cache
def of_gloo(answer, names):
    return of_ranks("gloo", answer, names)


def check_like_gloo(backend, answer, names):
    """Compares with Gloo all that Gloo answers. What it does not, torch itself cannot compile."""
    expected = of_gloo(answer, names)
    possible = [name for name in names if not any(str(of_rank[name]).startswith("refused") for of_rank in expected)]
    seen = of_ranks(backend, answer, possible)
    for rank in range(SIZE):
        assert seen[rank] == {name: expected[rank][name] for name in possible}, f"rank {rank}"
    return possible


def compiled_call(shapes, name, rank, size):
    function, whole = KNOWN[name], name in collective_calls.FUNCTIONAL
    compiled = torch.compile(function, backend="eager", fullgraph=whole, dynamic=True if shapes == "dynamic" else None)
    inputs = [torch.arange(3.0 * rows).reshape(rows, 3) + rank + rows + step for step, rows in enumerate(ROWS[shapes])]
    return [compiled(x, rank, size).tolist() for x in inputs]


ANSWERS = {shapes: functools.partial(compiled_call, shapes) for shapes in ROWS}


@pytest.mark.parametrize("names", chunks(KNOWN, 26), ids=edges)
@pytest.mark.parametrize("shapes", ROWS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_collectives_have_the_values_of_gloo(backend, shapes, names):
    possible = check_like_gloo(backend, ANSWERS[shapes], names)
    assert 3 * len(possible) >= len(names), f"Gloo answers only {possible}"
    assert not set(names) & set(collective_calls.FUNCTIONAL) - set(possible), "Gloo has all functional collectives"


def test_every_collective_of_torch_has_a_call():
    called = {name.split("__")[0] for name in collective_calls.CALLS}
    assert set(collective_calls.collectives_of_torch()) <= called


@pytest.mark.parametrize("names", chunks(compiled_training.TRAININGS, 5), ids=edges)
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_training_takes_the_steps_of_gloo(backend, names):
    assert check_like_gloo(backend, compiled_training.losses, names) == list(names)


def test_no_function_of_the_package_is_traced():
    ours = [one for one in gc.get_objects() if isinstance(one, types.FunctionType)
            and str(one.__module__).split(".")[0] == "unisono" and "<locals>" not in one.__qualname__]  # fmt: skip
    assert len(ours) > 100
    assert [one.__qualname__ for one in ours if not getattr(one, "_torchdynamo_disable", False)] == []
