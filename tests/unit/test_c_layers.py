"""Check that includes between C sources follow the layers in docs/contributing/c-sources.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
#: A table: its head names the program's folder, each row the directories of one layer, top first.
_TABLE = re.compile(
    r"^\| directory of `(?P<program>[^`]+)` \| contents \|\n\|---\|---\|\n(?P<rows>(?:\|.*\n)+)",
    re.M,
)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
#: Programs in which each source has its own header.
ONE_HEADER_EACH = ["proxy_backend/backend"]
#: Included by all programs, as "common/NAME.h"; includes nothing else of ours.
COMMON = ROOT / "proxy_backend" / "common"


def _tables() -> dict[str, list[list[str]]]:
    """Return the layers of each program, top first."""
    text = (ROOT / "docs" / "contributing" / "c-sources.md").read_text()
    return {
        found["program"]: [
            re.findall(r"`([^`]+)`", row.split("|")[1]) for row in found["rows"].splitlines()
        ]
        for found in _TABLE.finditer(text)
    }


LAYERS = _tables()


def sources(program: str) -> list[PurePosixPath]:
    """Return the C sources of a program, relative to its folder."""
    folder = ROOT / program
    return sorted(PurePosixPath(path.relative_to(folder)) for path in folder.rglob("*.[ch]"))


def directory_of(source: PurePosixPath) -> str:
    """Return a source's directory; a file in no directory counts as one by itself."""
    return source.parts[0]


def includes(program: str) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """Yield each file with the program's own files that it includes."""
    for source in sources(program):
        for name in _INCLUDE.findall((ROOT / program / source).read_text()):
            if not (ROOT / "proxy_backend" / name).is_relative_to(COMMON):
                yield source, PurePosixPath(name)


def test_every_program_has_a_table() -> None:
    programs = {path.parents[1] for path in (ROOT / "proxy_backend").glob("*/*/*.c")}
    assert sorted(LAYERS) == sorted(str(path.relative_to(ROOT)) for path in programs)


@pytest.mark.parametrize("program", LAYERS)
def test_the_table_names_every_directory(program: str) -> None:
    named = [room for layer in LAYERS[program] for room in layer]
    assert sorted(named) == sorted({directory_of(source) for source in sources(program)})


@pytest.mark.parametrize("program", LAYERS)
def test_includes_go_downwards_or_stay_in_their_directory(program: str) -> None:
    there = set(sources(program))
    floor = {room: number for number, layer in enumerate(LAYERS[program]) for room in layer}
    wrong = [
        f"{source} includes {included}"
        for source, included in includes(program)
        if included not in there
        or not (
            directory_of(source) == directory_of(included)
            or floor[directory_of(source)] < floor[directory_of(included)]
        )
    ]
    assert wrong == []


def test_common_sources_include_only_each_other() -> None:
    for source in sorted(COMMON.glob("*.[ch]")):
        for name in _INCLUDE.findall(source.read_text()):
            assert (COMMON.parent / name).parent == COMMON, f"{source.name} includes {name}"


@pytest.mark.parametrize("program", ONE_HEADER_EACH)
def test_includes_have_no_cycles(program: str) -> None:
    """A source and its header count as one file: what one needs must not need the other."""
    graph: dict[PurePosixPath, set[PurePosixPath]] = {}
    for source, included in includes(program):
        one, other = source.with_suffix(""), included.with_suffix("")
        if one != other:
            graph.setdefault(one, set()).add(other)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


@pytest.mark.parametrize("program", ONE_HEADER_EACH)
def test_a_source_includes_its_own_header_first(program: str) -> None:
    there = set(sources(program))
    in_rooms = [one for one in there if one.suffix == ".c" and len(one.parts) > 1]
    firsts = {one: _INCLUDE.findall((ROOT / program / one).read_text())[0] for one in in_rooms}
    assert [one for one in in_rooms if firsts[one] != str(one.with_suffix(".h"))] == []
