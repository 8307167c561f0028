"""The table of tensors and calls in docs/python.md, and the rule that no cell is worse than with Gloo."""

import os
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tensor_table  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
# What Gloo does, which takes minutes to find out, since it ends processes and waits for timeouts.
OF_GLOO = Path(__file__).with_name("tensor_table_gloo.txt")
WRITES = bool(os.environ.get("UNISONO_WRITE_BOOK"))
# The version whose Gloo the table shows.
VERSION = "2.15"
MARKS = re.compile(r"(?<=<!-- tensors -->\n).*(?=<!-- end of tensors -->)", re.DOTALL)
OF_BOTH = {"right": "=", "refused": "×", "fails": "×", "hangs": "hang", "wrong": "wrong", "ends": "end"}


@pytest.fixture(scope="module")
def cells():
    """The outcomes with Gloo and with unisono, by kind and call."""
    if not torch.__version__.startswith(VERSION):
        pytest.skip(f"the table is of torch {VERSION}")
    if WRITES:
        lines = ["\t".join([*cell, outcome]) for cell, outcome in tensor_table.outcomes_of("gloo").items()]
        OF_GLOO.write_text("".join(f"{line}\n" for line in lines))
    own = tensor_table.outcomes_of("unisono")
    of_gloo = {tuple(cell): outcome for *cell, outcome in map(lambda line: line.split("\t"), _lines(OF_GLOO))}
    assert of_gloo.keys() == own.keys(), f"other cells than in {OF_GLOO}: run it with UNISONO_WRITE_BOOK=1"
    return {cell: (of_gloo[cell], own[cell]) for cell in own}


def _lines(path):
    return path.read_text().splitlines()


def test_no_call_does_less_than_with_gloo(cells):
    rank = tensor_table.OUTCOMES.index
    worse = {
        cell: both for cell, both in cells.items() if "skipped" not in both and rank(both[1]) > rank(both[0])
    }
    assert not worse, worse


def test_page_shows_what_tensors_do(cells):
    text = _table(cells)
    if WRITES:
        PAGE.write_text(MARKS.sub(lambda _: text, PAGE.read_text()))
    shown = MARKS.search(PAGE.read_text())
    assert shown and shown[0] == text, "run it with UNISONO_WRITE_BOOK=1, and commit docs/python.md"


def _table(cells):
    kinds = list(dict.fromkeys(kind for kind, _ in cells if kind != "arguments"))
    calls = list(dict.fromkeys(call for kind, call in cells if kind != "arguments"))
    lines = _merged(kinds, calls, {cell: _sign(*both) for cell, both in cells.items()})
    lines += ["", "| arguments | Gloo | unisono |", "|---|---|---|"]
    differing = [(call, both) for (kind, call), both in cells.items() if kind == "arguments"]
    lines += [f"| {call} | {_words(gloo)} | {_words(own)} |" for call, (gloo, own) in differing]
    return "\n".join(["", *lines, "", ""])


def _sign(gloo, own):
    if "skipped" in (gloo, own):
        return ""
    return OF_BOTH[own] if gloo == own else f"{_words(gloo)} → {_words(own)}"


def _words(outcome):
    return {
        "right": "right", "refused": "error", "fails": "error on a rank", "hangs": "timeout",
        "wrong": "**wrong values**", "ends": "process ends",
    }[outcome]  # fmt: skip


def _merged(kinds, calls, signs):
    """Returns the lines of the table, in which equal rows and equal columns are one."""
    columns = {}
    for call in calls:
        columns.setdefault(tuple(signs[kind, call] for kind in kinds), []).append(call)
    rows = {}
    for kind in kinds:
        rows.setdefault(tuple(signs[kind, names[0]] for names in columns.values()), []).append(kind)
    heads = [", ".join(name.replace("_", " ") for name in names) for names in columns.values()]
    lines = [f"| tensors | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    return lines + [f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in rows.items()]
