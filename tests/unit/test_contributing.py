"""Check that the files and names in CONTRIBUTING.md, the architecture, the decisions and the notes exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: Pages that describe the code by its files.
PAGES = [
    ROOT / "docs" / "concepts" / "architecture.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
    ROOT / "docs" / "contributing" / "c-sources.md",
    ROOT / "docs" / "contributing" / "triton-notes.md",
]
ROOMS = sorted(path.parent.name for path in (ROOT / "dispatcher").glob("*/__init__.py"))
#: A source file anywhere in a text, with or without folders.
_SOURCE = re.compile(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.(?:py|c|h))\b")
#: Paths of Triton or of the user.
_NOT_OURS = {"model.py", "numpy.py"}
#: A file or folder between backticks: `some/folder/`, `some/file.py`, `scripts/name`.
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|c|h|md|toml))(?: [^`]*)?`")
#: Files that exist only after the first run.
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


def test_mentioned_paths_exist() -> None:
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


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_of_the_dispatcher_is_on_the_map(room: str) -> None:
    assert re.search(rf"^  {room}/ +\S", TEXT, re.M), "add it to the map in CONTRIBUTING.md"


def test_the_order_of_the_rooms_is_that_of_the_contract() -> None:
    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.findall(r'"(.*)",', contracts.partition('id = "rooms"')[2].partition("]")[0])
    floors = [set(re.findall(r"dispatcher\.([\w.]+)", layer)) for layer in layers[1:]]
    order = TEXT.partition("in this order: `")[2].partition("`")[0]
    said = [set(re.findall(r"[\w.]+", floor)) for floor in order.split("▶")[1:]]
    assert said == floors


def test_the_files_that_pages_about_the_code_name_are_there() -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for top in ("pytriton", "dispatcher", "worker", "proxy_backend", "tests", "scripts")
        for ending in ("py", "c", "h")
        for path in (ROOT / top).rglob(f"*.{ending}")
    }
    named = {
        (page.name, name)
        for page in PAGES
        for name in _SOURCE.findall(page.read_text(encoding="utf-8"))
    }
    assert len(named) > 40
    gone = sorted(
        f"{page}: {name}"
        for page, name in named
        if name.rpartition("/")[2] not in _NOT_OURS
        and not any(source == name or source.endswith(f"/{name}") for source in sources)
    )
    assert gone == [], "these have moved: name their new places"


def test_the_tests_that_documents_name_are_there() -> None:
    gone = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for name in re.findall(r"(?<![\w/])tests/[\w/.-]*\w", page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert gone == []
