"""Keep the tour through the code true: its files exist and contain the names it mentions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
TOUR = (ROOT / "docs" / "contributing" / "tour.md").read_text(encoding="utf-8")


_HEADING = re.compile(r"^### (\d+)\. `([^`]+)`$", re.M)
_CODE_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w/]+/\w+\.(?:py|c|h)")
#: A method and the file that has it: `TritonServer.replace` (`dispatcher/server/tritonserver.py`).
_PLACED = re.compile(r"`(\w+\.\w+)` \(`([^`]+)`\)")


def stops() -> dict[str, str]:
    """Return the section of each file, by the file's path."""
    parts = _HEADING.split(TOUR)
    return {path: text.partition("\n## ")[0] for path, text in zip(parts[2::3], parts[3::3])}


STOPS = stops()


def defined_names(source: str) -> set[str]:
    """Return the functions, classes and methods (`Class.method`) that Python source defines."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names.update(
                f"{node.name}.{member.name}"
                for member in node.body
                if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef))
            )
    return names


def missing_names(source: str, section: str) -> list[str]:
    """Return the names in a section of the tour that its file lacks. Paths of other files are not names."""
    spans = {span for span in _CODE_SPAN.findall(section) if not _PATH.fullmatch(span)}
    dotted = {span for span in spans if re.fullmatch(r"[A-Za-z]\w*\.\w+", span)}
    words = {span.lstrip("@") for span in spans - dotted}
    present = set(re.findall(r"\w+", source))
    gone = words - present
    if dotted:
        gone |= dotted - defined_names(source)
    return sorted(gone)


@pytest.mark.parametrize("path", STOPS)
def test_a_file_of_the_tour_has_the_names_it_mentions(path: str) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    assert missing_names(source, STOPS[path]) == [], f"docs/contributing/tour.md, {path}"


def test_every_file_that_the_tour_mentions_exists() -> None:
    paths = {span for span in _CODE_SPAN.findall(TOUR) if _PATH.fullmatch(span)}
    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize(("method", "path"), _PLACED.findall(TOUR))
def test_a_file_has_the_method_that_the_tour_places_in_it(method: str, path: str) -> None:
    assert method in defined_names((ROOT / path).read_text(encoding="utf-8"))


def test_a_renamed_function_or_method_is_found() -> None:
    source = "class A:\n    def b(self): ...\n\ndef c(): ...\n"
    section = "`A.b` `c` `A` `A.c` `gone` `@c`"
    assert missing_names(source, section) == ["A.c", "gone"]
