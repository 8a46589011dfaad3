"""Checks the documents: links, and the files, names and commands they mention. See scripts/docs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

from documentation import code_references, tutorials
from pytriton._cli.app import app

#: A block of code between fences, or indented behind an empty line.
_CODE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$|(?<=\n\n)(    [^\n]*\n)+", re.M | re.S)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Finding(NamedTuple):
    """A problem in a document."""

    path: Path
    line: int
    text: str


def all_documents(root: Path) -> list[Path]:
    """Return all documents of a checkout."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])


def edited(root: Path) -> list[Path]:
    """Return the documents whose mentions are checked: all but the changelog."""
    return [path for path in all_documents(root) if path != root / "CHANGELOG.md"]


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub creates them."""
    headings = re.findall(r"^#+ +(.+?) *$", _without_code(text), re.M)
    plain = [re.sub(r"[^\w\- ]", "", one.lower()) for one in headings]
    return {one.replace(" ", "-") for one in plain}


def dead_links(path: Path) -> Iterator[Finding]:
    """Yield the links of a document to files or headings that do not exist. External links are not checked."""
    text = _without_code(path.read_text(encoding="utf-8"))
    for match in _LINK.finditer(text):
        target, _, anchor = match[1].partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        place = path.parent / target if target else path
        line = text.count("\n", 0, match.start()) + 1
        if not place.exists():
            yield Finding(path, line, f"{match[1]}: there is no such file")
        elif anchor and anchor not in anchors(place.read_text(encoding="utf-8")):
            yield Finding(path, line, f"{match[1]}: there is no such heading")


def stale_mentions(root: Path, path: Path) -> Iterator[Finding]:
    """Yield the files, names, commands and flags that a document mentions and the checkout lacks."""
    text = path.read_text(encoding="utf-8")
    for line, said in code_references.gone(text, code_references.tree_of(root), command_line()):
        yield Finding(path, line, said)


@cache
def command_line() -> Any:
    """Return the parser of the command line. Cached, because creating it is slow."""
    return typer.main.get_command(app)


def orphans(root: Path) -> Iterator[Finding]:
    """Yield the pages that are missing in the navigation of the site."""
    navigation = root / "mkdocs.yml"
    text = navigation.read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = set(re.findall(r"(?::|-) ([\w/-]+\.md)$", text, re.M))
    for path in sorted(root.glob("docs/**/*.md")):
        if path.relative_to(root / "docs").as_posix() not in named:
            yield Finding(path, 1, "mkdocs.yml does not name this page in its navigation")


def _without_code(text: str) -> str:
    """Return a text with its code blocks replaced by empty lines."""
    return _CODE.sub(lambda match: "\n" * match[0].count("\n"), text)


def main() -> int:
    """Print all findings; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="check all documents: the default")
    parser.add_argument("--write", action="store_true", help="copy the files of the tutorials")
    arguments = parser.parse_args()
    root: Path = arguments.root
    if arguments.write:
        for page in tutorials.write(root):
            print(f"{page.relative_to(root)} is written")
        return 0
    documents = all_documents(root)
    found = [*orphans(root), *(one for path in documents for one in dead_links(path))]
    found += [one for path in edited(root) for one in stale_mentions(root, path)]
    for one in found:
        print(f"{one.path.relative_to(root)}:{one.line}: {one.text}")
    if not found:
        print(f"{len(documents)} documents: links, mentions and navigation are right")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
