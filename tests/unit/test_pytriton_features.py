"""The tables of features in docs/audits give every feature's state and name only existing tests."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
STATES = ("done", "partly", "not yet", "not")
#: Table -> the number of its rows.
TABLES = {
    "pytriton-features.csv": 203,
    "python-backend-features.csv": 59,
    "runner-features.csv": 30,
}


class Row(NamedTuple):
    """One row of a table."""

    row: str
    area: str
    feature: str
    mark: str
    state: str
    note: str
    tests: str


def rows(table: str) -> list[Row]:
    with (ROOT / "docs" / "audits" / table).open(encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


ROWS = [row for table in TABLES for row in rows(table)]


@cache
def functions_in(path: Path) -> frozenset[str]:
    text = path.read_text(encoding="utf-8")
    return frozenset(re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.M))


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_there_once(table: str) -> None:
    numbers = [row.row for row in rows(table)]
    assert len(numbers) == TABLES[table]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.row))
def test_a_row_has_a_state_and_its_tests_exist(row: Row) -> None:
    assert row.state in STATES
    named = row.tests.split()
    assert named or row.state != "done"
    assert row.note or row.state not in ("partly", "not yet", "not")
    for one in named:
        path, _, name = one.partition("::")
        file = ROOT / "tests" / path
        assert file.is_file(), one
        assert name.startswith("test_"), one
        assert name in functions_in(file), one
