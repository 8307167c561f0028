"""The comparisons with Gloo: they run, and they tell a wrong result from a right one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
BENCHES = Path(__file__).parents[1] / "benches"
sys.path.insert(0, str(BENCHES))
import clients  # noqa: E402
import collectives  # noqa: E402
import inference  # noqa: E402


def rows_of(script, folder, *arguments):
    """Runs a script for two rounds at two ranks and returns the rows that it wrote."""
    command = [sys.executable, str(BENCHES / script), "--ranks", "2", "--rounds", "2", "--out", str(folder)]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (path,) = folder.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    assert all(len(row["gloo_seconds"]) == len(row["unisono_seconds"]) == 2 for row in rows)
    return rows


def test_clients_have_the_same_bits(tmp_path):
    small = ["--dim", "16", "--heads", "2", "--layers", "2", "--sequence", "4", "--steps", "1"]
    names = ["DDP", "FSDP2", "object collectives"]
    rows = rows_of("clients.py", tmp_path, *small, "--clients", *names)
    assert [row["client"] for row in rows] == names
    assert all(row["same_bits"] and row["changed"] and row["right"] for row in rows), rows


def test_collectives_are_verified_in_every_round(tmp_path):
    rows = rows_of("collectives.py", tmp_path, "--sizes", "4", "4096")
    sizes = {(row["collective"], row["bytes"]) for row in rows}
    names = [name for name in collectives.COLLECTIVES if name != "barrier"]
    assert sizes == {(name, size) for name in names for size in (4, 4096)} | {("barrier", 0)}
    assert all(row["ratio"] > 0 for row in rows)


def test_sums_of_a_token_are_verified_in_every_round(tmp_path):
    rows = rows_of("inference.py", tmp_path, "--sizes", "64", "4096", "--sums", "3")
    assert [(row["bytes"], row["sums"]) for row in rows] == [(64, 3), (4096, 3)]


def test_token_whose_sums_are_not_made_is_wrong():
    token = inference.Token(3, 8, rank=1, size=2)
    token.generate = lambda: None
    with pytest.raises(AssertionError, match="3 of 3 sums are wrong on rank 1"):
        token.verify()


@pytest.mark.parametrize("name", [name for name in collectives.COLLECTIVES if name != "barrier"])
def test_collective_that_does_nothing_is_wrong(name):
    case = collectives.Case(name, 8, rank=0 if name in ("reduce", "gather") else 1, size=2)
    case.call = lambda: None
    with pytest.raises(AssertionError, match=f"{name} of 8 elements is wrong"):
        case.verify()


def test_states_that_differ_are_found():
    one = [[torch.tensor([1.0, 2.0]).numpy()], [torch.tensor([3.0]).numpy()]]
    other = [[torch.tensor([1.0, 2.0]).numpy()], [torch.tensor([3.0 + 2**-20]).numpy()]]
    assert clients.difference(one, one) == (0.0, True)
    worst, same = clients.difference(one, other)
    assert worst == 2**-20 and not same
    assert clients.is_right(4, worst, same) and not clients.is_right(2, worst, same)
    other[1][0][:] = float("nan")
    worst, same = clients.difference(one, other)
    assert not clients.is_right(4, worst, same)
