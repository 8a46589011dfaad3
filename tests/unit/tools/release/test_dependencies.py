"""Every dependency is justified, and the document has the justification."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from release import dependencies

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[4]


def test_every_dependency_is_in_the_table() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        wanted = tomllib.load(file)["project"]["dependencies"]
    named = [re.match(r"[\w-]+", one)[0] for one in wanted]  # type: ignore[index]
    names = list(dict.fromkeys(named))  # one may have a bound for each Python
    assert [one.name for one in dependencies.DEPENDENCIES] == names
    (document,) = (ROOT / "docs").rglob("dependencies.md")
    text = document.read_text()
    for one in dependencies.DEPENDENCIES:
        assert f"| {one.name} | {one.needed_by} | {one.why} | {one.instead} |" in text, one.name


def test_a_row_has_the_costs_in_megabytes_and_milliseconds() -> None:
    text = dependencies.table({"msgspec": (512_345, 0.0123)})
    assert re.search(r"^\| msgspec \| .* \| 0\.5 \| 12 \|$", text, re.MULTILINE)
    assert re.search(r"^\| numpy \| .* \| \? \| \? \|$", text, re.MULTILINE)


def test_the_first_environment_that_has_a_package_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """tomli, say, is in no environment of Python 3.11."""
    costs = {
        "new": {"msgspec": (1, 0.1)},
        "old": {"msgspec": (2, 0.2), "tomli": (3, 0.3)},
    }
    monkeypatch.setattr(dependencies, "measure", lambda python: costs[python.name])
    measured = dependencies.measure_all([Path("new"), Path("old")])
    assert measured == {"msgspec": (1, 0.1), "tomli": (3, 0.3)}
