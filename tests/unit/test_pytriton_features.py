"""The tables of features in docs/ say of every row where it stands, and name only tests that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
STATES = ("done", "partly", "not yet", "in work", "not")
#: Table -> the letter of its rows and their number.
TABLES = {
    "pytriton-features.md": ("A", 203),
    "python-backend-features.md": ("B", 59),
    "runner-features.md": ("C", 30),
}


class Row(NamedTuple):
    """One row of the table."""

    id: str
    feature: str
    state: str
    note: str
    tests: str


def rows(table: str) -> list[Row]:
    text = (ROOT / "docs" / "audits" / table).read_text(encoding="utf-8")
    letter, _ = TABLES[table]
    lines = [line for line in text.splitlines() if re.match(rf"\| {letter}\d", line)]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


ROWS = [row for table in TABLES for row in rows(table)]


@cache
def functions_in(path: Path) -> frozenset[str]:
    text = path.read_text(encoding="utf-8")
    return frozenset(re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.M))


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_there_once(table: str) -> None:
    numbers = [row.id.split()[0] for row in rows(table)]
    assert len(numbers) == TABLES[table][1]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.id.split()[0]))
def test_a_row_says_where_it_stands_and_its_tests_exist(row: Row) -> None:
    assert row.state in STATES
    named = [cell.strip(" `") for cell in row.tests.split(",") if cell.strip()]
    assert named or row.state != "done"
    assert row.note or row.state not in ("partly", "not yet", "not")
    for one in named:
        path, _, name = one.partition("::")
        file = ROOT / "tests" / path
        assert file.is_file(), one
        assert name.startswith("test_"), one
        assert name in functions_in(file), one
