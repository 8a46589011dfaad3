"""Checks the documents: links, what they mention of the code, style (docs/contributing/style.md); see scripts/docs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

from checking import mentions, tutorials
from pytriton.cli.app import app

MOST_WORDS = 30
#: The largest part of a document's sentences that may be in the passive voice, from so many sentences on.
MOST_PASSIVE = 1 / 3
FEWEST_SENTENCES = 20
#: Patterns in a sentence -> what to write instead.
BANNED = {
    r"^(What|Who|Whoever|Whether|Of|Nobody|That of) ": "begin with the subject",
    r"\b(nobody|nothing) else\b": "say what happens, in the positive",
    r"\bas ever\b": "write 'as before', or leave it out",
    r"\bit is to be\b": "name the subject and use a plain verb",
    r"\bso much as\b": "use a plain word",
    r"\b(in order to|utilize|leverage|seamless|simply|just works)\b": "use a plain word",
    r"\bthat of (a|an|the) \w+ that\b": "name the thing",
    r"\bby (themselves|itself) (find|tell|ask)": "put the verb before",
}
#: A block of code between fences, or indented behind an empty line.
_CODE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$|(?<=\n\n)(    [^\n]*\n)+", re.M | re.S)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
#: tritonserver begins a sentence as it is; a mark may close what the sentence ends.
_SENTENCE_END = re.compile(
    r"(?:(?<=[.!?:])|(?<=[.!?:][*)\"])|(?<=[.!?:]\*\*))\s+(?=[A-Z0-9`*\[(\"✗⚠]|tritonserver)"
)
#: Code between backticks and paths of files, with all of such a list.
_CODES = re.compile(
    r"(?:\*{0,2}(?:`[^`]*`|[\w./-]*/[\w./-]+)\*{0,2}(?:, (?:and |or )?| and | or )?)+"
)
_WORD = re.compile(r"\d[\d.,]*|\w[\w'-]*")
_IRREGULAR = (
    "built|bound|chosen|cut|done|drawn|driven|found|given|gone|hidden|held|kept|known|laid|left|lent|lost|made|meant|"
    "measured|put|read|run|said|seen|sent|set|shown|split|spent|taken|thrown|told|understood|written|won"
)
_PASSIVE = re.compile(
    rf"\b(?:is|are|was|were|be|been|being)\s+(?:(?:not|also|then|never|always|only|\w+ly)\s+)?(?:\w+ed|{_IRREGULAR})\b"
)


class Finding(NamedTuple):
    """A fault of a document."""

    path: Path
    line: int
    text: str


def all_documents(root: Path) -> list[Path]:
    """Return all documents of a checkout."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])


def edited(root: Path) -> list[Path]:
    """Return the documents whose style is checked: all but the history."""
    return [path for path in all_documents(root) if path != root / "CHANGELOG.md"]


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


def stale_mentions(root: Path, path: Path) -> Iterator[Finding]:
    """Yield the files, names, commands and flags that a document mentions and the checkout does not have."""
    text = path.read_text(encoding="utf-8")
    for line, said in mentions.gone(text, mentions.tree_of(root), command_line()):
        yield Finding(path, line, said)


@cache
def command_line() -> Any:
    """Return the parser of the command line, which takes typer a while to make."""
    return typer.main.get_command(app)


def style(path: Path) -> Iterator[Finding]:
    """Yield the sentences of a document that are too long or hold a pattern of BANNED, and too much passive voice."""
    sentences = list(_sentences(path.read_text(encoding="utf-8")))
    for line, sentence in sentences:
        words = len(_WORD.findall(_CODES.sub("code ", sentence)))
        if words > MOST_WORDS:
            yield Finding(path, line, f"{words} words in a sentence: {sentence[:60]}…")
        for pattern, advice in BANNED.items():
            if re.search(pattern, sentence):
                yield Finding(path, line, f"{advice}: {sentence[:60]}…")
    passive = [line for line, sentence in sentences if _PASSIVE.search(sentence)]
    share = len(passive) / max(1, len(sentences))
    if len(sentences) >= FEWEST_SENTENCES and share > MOST_PASSIVE:
        where = ", ".join(map(str, passive[:12]))
        yield Finding(
            path, 1, f"{share:.0%} of the sentences are in the passive voice; lines {where}…"
        )


def orphans(root: Path) -> Iterator[Finding]:
    """Yield the pages that the navigation of the site lacks, and those in it that are not there."""
    navigation = root / "mkdocs.yml"
    text = navigation.read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = set(re.findall(r"(?::|-) ([\w/-]+\.md)$", text, re.M))
    for path in sorted(root.glob("docs/**/*.md")):
        if path.relative_to(root / "docs").as_posix() not in named:
            yield Finding(path, 1, "mkdocs.yml does not name this page in its navigation")


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
    parser.add_argument("--check", action="store_true", help="check all documents: the default")
    parser.add_argument("--write", action="store_true", help="copy the files of the tutorials")
    parser.add_argument("documents", nargs="*", help="look at the style of these instead")
    arguments = parser.parse_args()
    root: Path = arguments.root
    if arguments.write:
        for page in tutorials.write(root):
            print(f"{page.relative_to(root)} is written")
        return 0
    documents = all_documents(root)
    found = [*orphans(root), *(one for path in documents for one in dead_links(path))]
    for path in map(Path, arguments.documents):
        found += style(root / path)
    for path in () if arguments.documents else edited(root):
        found += [*style(path), *stale_mentions(root, path)]
    for one in found:
        print(f"{one.path.relative_to(root)}:{one.line}: {one.text}")
    if not found:
        print(f"{len(documents)} documents: links, mentions, navigation and style are right")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
