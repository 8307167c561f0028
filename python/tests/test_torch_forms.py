"""Every form of a call that torch's C++ takes, on groups and on backends: the values are those of Gloo."""

import json
import tempfile
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from unisono import errors  # noqa: E402
from unisono.torch import _versions  # noqa: E402

from conftest import run_processes  # noqa: E402

MIXED = "cpu:unisono,cuda:gloo"
BACKENDS = ["unisono", pytest.param(MIXED, marks=pytest.mark.skipif(
    not _versions.HAS_BACKENDS, reason="this version of torch takes a Python backend only for the whole group"))]

# Calls of a group or backend `p` on rank `r` of two, and the tensors that hold the result where they are defined.
FORMS = """
p.allreduce([a]) -> a
p.allreduce([a], R.MAX) -> a
p.allreduce([a], op=R.MAX) -> a
p.allreduce([a], R.MAX, limit) -> a
p.allreduce(a) -> a
p.allreduce(a, R.MIN) -> a
p.allreduce(a, op=R.MIN, timeout=limit) -> a
p.allreduce(tensors=[a]) -> a
p.allreduce((a,)) -> a
p.allreduce([a], R.AVG) -> a
p.allreduce([a], opts=options(dist.AllreduceOptions, reduceOp=R.MAX)) -> a
p.allreduce([a, b]) -> a, b
p.allreduce([a, b], R.MAX) -> a, b
p.allreduce([a, b, x], R.PRODUCT) -> a, b, x
p.allreduce([i, i.clone()], R.BXOR) -> i
p.allreduce([a, a]) -> a
p.allreduce([c, c.clone()]) -> c
p.allreduce_coalesced([a, b]) -> a, b
p.allreduce_coalesced([a, longer], options(dist.AllreduceCoalescedOptions, reduceOp=R.MAX)) -> a, longer
p.broadcast([a]) -> a
p.broadcast(a, 1) -> a
p.broadcast(a, root=1, timeout=limit) -> a
p.broadcast([a, b]) -> a, b
p.broadcast([a, b], options(dist.BroadcastOptions, rootRank=1, rootTensor=1)) -> a, b
p.reduce([a]) -> a if r == 0
p.reduce(a, 1, R.MAX) -> a if r == 1
p.reduce(a, root=1, op=R.MAX, timeout=limit) -> a if r == 1
p.reduce([a], options(dist.ReduceOptions, rootRank=1)) -> a if r == 1
p.allgather([[x, y]], [a]) -> x, y
p.allgather([x, y], a) -> x, y
p.allgather([x, y], a, limit) -> x, y
p.allgather([x, y], a, timeout=limit) -> x, y
p._allgather_base(long, a) -> long
p.all_gather_single(output=long, input=a) -> long
p.all_gather_single_coalesced([long], [a]) -> long
p.allgather_coalesced([[x], [y]], [a]) -> x, y
p.gather([[x, y]] if r == 0 else [], [a]) -> x, y
p.gather([x, y] if r == 0 else [], a, 0) -> x, y
p.gather([x, y] if r == 1 else [], a, root=1, timeout=limit) -> x, y
p.scatter([x], [[a, b]] if r == 0 else []) -> x
p.scatter(x, [a, b] if r == 0 else [], 0) -> x
p.scatter(x, [a, b] if r == 1 else [], root=1, timeout=limit) -> x
p.reduce_scatter([x], [[a, b]]) -> x
p.reduce_scatter(x, [a, b]) -> x
p.reduce_scatter(x, [a, b], R.MAX, limit) -> x
p._reduce_scatter_base(half, a) -> half
p.reduce_scatter_single(half, a) -> half
p.reduce_scatter_single_coalesced([half], [a]) -> half
p.alltoall([x, y], [a, b]) -> x, y
p.alltoall_base(x, a, [], []) -> x
p.alltoall_base(x, a, [2, 2], [2, 2]) -> x
p.alltoall_base(x, a, [], [], limit) -> x
p.alltoall_base(x, a, [], [], timeout=limit) -> x
p.all_to_all_single(x, a, [], []) -> x
p.barrier() -> a
p.barrier(dist.BarrierOptions()) -> a
p.monitored_barrier() -> a
p.monitored_barrier(limit) -> a
p.monitored_barrier(timeout=limit, wait_all_ranks=True) -> a
p.send([a], 1, 3) if r == 0 else p.recv([a], 0, 3) -> a
p.send([a], dstRank=1, tag=3) if r == 0 else p.recv([a], srcRank=0, tag=3) -> a
""".strip().splitlines()


def options(kind, **values):
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def answer(form, holder, rank):
    """Returns the values after a call, or the name of a method that this version of torch lacks."""
    call, results = form.split(" -> ")
    method = call.split("p.", 1)[1].split("(")[0]
    if not hasattr(holder, method):
        return method
    mine = torch.arange(4.0) + 10 * (rank + 1)
    names = {
        "p": holder, "r": rank, "R": dist.ReduceOp, "limit": timedelta(seconds=20), "dist": dist, "options": options,
        "a": mine, "b": mine * 2, "c": torch.stack([mine, mine]).t(), "i": mine.int(), "longer": torch.ones(6) + rank,
        "x": torch.zeros(4), "y": torch.zeros(4), "long": torch.zeros(8), "half": torch.zeros(2),
    }  # fmt: skip
    work = eval(call, names)  # The text of the call is also the name under which it is reported.
    if work is not None:
        work.wait()
    results, _, condition = results.partition(" if ")
    return [names[name].tolist() for name in results.split(", ")] if not condition or eval(condition, names) else []


def of_ranks(backend, of_backend):
    with tempfile.TemporaryDirectory() as folder:

        def body(rank, size):
            group = dist.group.WORLD
            holder = group._get_backend(torch.device("cpu")) if of_backend else group
            answers = {form: answer(form, holder, rank) for form in FORMS}
            with open(f"{folder}/{rank}", "w") as file:
                json.dump(answers, file)

        run_processes(2, body, backend)
        return [json.load(open(f"{folder}/{rank}")) for rank in range(2)]


@pytest.mark.parametrize("of_backend", [False, True], ids=["group", "backend"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_form_of_a_call_has_the_values_of_gloo(backend, of_backend):
    if of_backend and not _versions.HAS_BACKENDS:
        pytest.skip("this version of torch takes a Python backend only for the whole group")
    assert of_ranks(backend, of_backend) == of_ranks("gloo", of_backend)


def test_call_of_a_backend_returns_its_own_work(processes):
    def body(rank, size):
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        work = backend.allreduce([values := torch.ones(3)])
        work.wait()
        assert work.is_completed() and work.result()[0] is values

    if _versions.HAS_BACKENDS:
        processes(2, body, MIXED)


def test_list_that_is_no_reduction_is_refused(processes):
    def body(rank, size):
        group, tensors = dist.group.WORLD, [torch.ones(3), torch.ones(3)]
        for call, text in (
            (lambda: group.allreduce(tensors, dist.ReduceOp.AVG), "a list of 2 tensors has no AVG.*call it for each"),
            (lambda: group.allreduce([torch.ones(3), torch.ones(4)]), r"the shapes \[3\] and \[4\].*for each"),
            (lambda: group.broadcast([torch.ones(3), torch.ones(4)]), r"the shapes \[3\] and \[4\].*for each"),
            (lambda: group.broadcast(tensors, options(dist.BroadcastOptions, rootTensor=2)), "give one from 0 to 1"),
            (lambda: group.reduce(tensors), "rank . in reduce: a call takes one tensor, not 2; call it for each"),
        ):
            with pytest.raises(errors.Error, match=text):
                call()
        dist.all_reduce(tensors[0])
        assert tensors[0].tolist() == [size] * 3

    processes(2, body)
