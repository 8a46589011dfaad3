"""Check the table "To change X, touch Y" in CONTRIBUTING.md, and that tests named by documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: A file or folder between backticks: `some/folder/`, `some/file.py`, `scripts/name`.
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|c|h|md|toml))(?: [^`]*)?`")
#: A row of "To change X, touch Y".
_ROW = re.compile(r"^\| (?P<change>[^|]+) \| (?P<places>.+) \|$", re.M)


def paths_in(text: str) -> list[str]:
    """Return the files and folders that a text names."""
    return sorted(set(_PATH.findall(text)))


def places() -> dict[str, str]:
    """Return the rows of the table by what they change."""
    table = TEXT.partition("## To change X, touch Y")[2].partition("\n## ")[0]
    rows = {row["change"]: row["places"] for row in _ROW.finditer(table)}
    return {change: where for change, where in rows.items() if change not in ("change", "---")}


PLACES = places()


@pytest.mark.parametrize("change", PLACES)
def test_a_rows_files_contain_the_names_that_it_mentions(change: str) -> None:
    """Each class, function or list in a row is in one of the row's files."""
    words = set(re.findall(r"`([A-Za-z_]+)`", PLACES[change])) - {"status", "load"}
    files = [ROOT / path for path in paths_in(PLACES[change]) if (ROOT / path).is_file()]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    missing = [word for word in sorted(words) if not re.search(rf"\b{word}\b", text)]
    assert missing == [], f"none of {[str(file.relative_to(ROOT)) for file in files]} has these"


def test_tests_named_by_documents_exist() -> None:
    gone = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for name in re.findall(r"(?<![\w/])tests/[\w/.-]*\w", page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert gone == []
