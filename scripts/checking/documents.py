"""Checks the documents: links lead somewhere, and texts keep to docs/contributing/style.md; see scripts/docs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOST_WORDS = 30
#: Documents that were edited for docs/contributing/style.md; the others follow, one by one.
EDITED = (
    "README.md",
    "docs/concepts/glossary.md",
    "docs/start/install.md",
    "docs/operations/kubernetes.md",
    "docs/how-to/registering.md",
    "docs/contributing/style.md",
)
#: Patterns in a sentence -> what to write instead.
BANNED = {
    r"^(What|Who|Whoever|Whether|That|Of|Nobody) ": "begin with the subject",
    r"\b(nobody|nothing) else\b": "say what happens, in the positive",
    r"\bas ever\b": "write 'as before', or leave it out",
    r"\bit is to be\b": "name the subject and use a plain verb",
    r"\bso much as\b": "use a plain word",
}
#: A block of code between fences, or indented behind an empty line.
_CODE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$|(?<=\n\n)(    [^\n]*\n)+", re.M | re.S)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[])")
_WORD = re.compile(r"\w[\w'-]*")


class Finding(NamedTuple):
    """A fault of a document."""

    path: Path
    line: int
    text: str


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as the usual hosts make them."""
    headings = re.findall(r"^#+ +(.+?) *$", _without_code(text), re.M)
    plain = [re.sub(r"[^\w\- ]", "", one.lower()) for one in headings]
    return {one.replace(" ", "-") for one in plain}


def dead_links(path: Path) -> Iterator[Finding]:
    """Yield the links of a document that lead to no file, or to no heading of it. Other sites are not asked."""
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


def style(path: Path) -> Iterator[Finding]:
    """Yield the sentences of a document that are too long, or hold a pattern of BANNED."""
    for line, sentence in _sentences(path.read_text(encoding="utf-8")):
        words = len(_WORD.findall(re.sub(r"`[^`]*`", "code", sentence)))
        if words > MOST_WORDS:
            yield Finding(path, line, f"{words} words in a sentence: {sentence[:60]}…")
        for pattern, advice in BANNED.items():
            if re.search(pattern, sentence):
                yield Finding(path, line, f"{advice}: {sentence[:60]}…")


def _without_code(text: str) -> str:
    """Return a text with its blocks of code blanked, line for line."""
    return _CODE.sub(lambda match: "\n" * match[0].count("\n"), text)


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence with the line on which its paragraph begins; tables and headings are left out."""
    paragraph: list[str] = []
    begun = 1
    for number, line in enumerate([*_without_code(text).split("\n"), ""], 1):
        item = re.match(r" *([-*]|\d+\.) +", line)
        aside = line.startswith(("|", "#")) or not line.strip()
        if paragraph and (item or aside):
            whole = _LINK.sub(lambda match: match[0][1:].partition("]")[0], " ".join(paragraph))
            yield from ((begun, one.strip("* ")) for one in _SENTENCE_END.split(whole))
            paragraph = []
        if not aside:
            begun = begun if paragraph else number
            paragraph.append(line[item.end() :] if item else line.strip())


def main() -> int:
    """Print all findings; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="check the documents: the default")
    parser.add_argument("documents", nargs="*", help="look at the style of these instead")
    arguments = parser.parse_args()
    root: Path = arguments.root
    documents = sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])
    found = [one for path in documents for one in dead_links(path)]
    for name in arguments.documents or EDITED:
        found += style(root / name)
    for one in found:
        print(f"{one.path.relative_to(root)}:{one.line}: {one.text}")
    if not found:
        print(f"{len(documents)} documents: all links lead somewhere")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
