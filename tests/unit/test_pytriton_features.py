"""The tables of features in docs/audits give every feature's state and name only existing tests."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@cache
def functions_in(path: Path) -> frozenset[str]:
    text = path.read_text(encoding="utf-8")
    return frozenset(re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.M))


@pytest.mark.parametrize(
    ("table", "length"),
    [
        ("pytriton-features.csv", 203),
        ("python-backend-features.csv", 59),
        ("runner-features.csv", 30),
    ],
)
def test_rows_have_a_state_and_existing_tests(table: str, length: int) -> None:
    with (ROOT / "docs" / "audits" / table).open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    numbers = [row["row"] for row in rows]
    assert len(numbers) == length
    assert numbers == sorted(set(numbers))
    for row in rows:
        assert row["tests"] or row["state"] != "done", row
        assert row["note"] or row["state"] == "done", row
        assert row["state"] in ("done", "partly", "not yet", "not"), row
        for one in row["tests"].split():
            path, _, name = one.partition("::")
            assert name in functions_in(ROOT / "tests" / path), one
