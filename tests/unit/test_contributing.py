"""CONTRIBUTING.md names files, and names in them: they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: A file or folder between backticks: `some/folder/`, `some/file.py`, `scripts/name`.
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|c|h|md|toml))(?: [^`]*)?`")
#: What there is only after the first run.
_MADE = re.compile(r"\.venv/|build/")
#: A row of "To change X, touch Y".
_ROW = re.compile(r"^\| (?P<change>[^|]+) \| (?P<places>.+) \|$", re.M)


def paths_in(text: str) -> list[str]:
    """Return what a text names as a file or folder of the project."""
    return sorted({path for path in _PATH.findall(text) if not _MADE.match(path)})


def places() -> dict[str, str]:
    """Return the rows of the table by what is to be changed."""
    table = TEXT.partition("## To change X, touch Y")[2].partition("\n## ")[0]
    rows = {row["change"]: row["places"] for row in _ROW.finditer(table)}
    return {change: where for change, where in rows.items() if change not in ("change", "---")}


PLACES = places()


def test_what_is_named_is_there() -> None:
    named = paths_in(TEXT)
    assert len(named) > 30
    gone = [path for path in named if path != "__init__.py" and not (ROOT / path).exists()]
    assert gone == [], "these have moved: name their new places in CONTRIBUTING.md"


@pytest.mark.parametrize("change", PLACES)
def test_a_place_that_is_named_for_something_has_it(change: str) -> None:
    """A name in a row, which is no file, stands in one of the row's files: a class, a function, a list."""
    words = set(re.findall(r"`([A-Za-z_]+)`", PLACES[change])) - {"status", "load"}
    files = [ROOT / path for path in paths_in(PLACES[change]) if (ROOT / path).is_file()]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    missing = [word for word in sorted(words) if not re.search(rf"\b{word}\b", text)]
    assert missing == [], f"none of {[str(file.relative_to(ROOT)) for file in files]} has these"
