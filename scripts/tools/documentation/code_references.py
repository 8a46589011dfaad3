"""Finds mentions of files, names, commands and flags in the documents that the code no longer has.

It checks code between backticks and commands in code blocks. It cannot check whether a sentence about them is true.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

#: Folders whose files have what the documents may name.
_SOURCES = (
    "deploy",
    "dispatcher",
    "examples",
    "proxy_backend",
    "pytriton",
    "scripts",
    "tests",
    "worker",
)
_TEXTS = (".py", ".c", ".h", ".js", ".json", ".toml", ".yaml", ".yml", ".md", ".pbtxt", "")
_BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.M | re.S)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PATH = re.compile(r"[\w*.-]+(?:/[\w*.-]+)*\.(?:py|c|h|sh)|[\w.-]+(?:/[\w.-]+)+/?")
_NAME = re.compile(r"(?:[a-z][a-z0-9]*(?:_[a-z0-9]+)+|[A-Z]+_[A-Z_]+)")
_COMMAND = re.compile(r"(?:^|(?<=[ $(])|(?<=bin/))pytriton-daemon ((?:\\\n|[^\n|;&`)])+)")
#: Pages that `scripts/generate` makes of declarations: what stands there, the code has in another form.
_GENERATED = ("docs/reference/configuration.md", "docs/reference/metrics.md")
#: Files of users and of other programs, and names of theirs, which a document may name all the same.
_OF_OTHERS = frozenset(
    {
        "backends/pytriton/model.py",  # made in the runtime directory
        "numpy.py",
        "API_KEY",
        "BENTOML_USE_HTTP_TRITONSERVER",
        "LOG_VERBOSITY",
        "PIP_CERT",
        "PYTRITON_NO_TENSORSTORE",
        "PYTRITON_VIZTRACER",
        "UV_INDEX_URL",
        "exported_instance",
        "lock_exception",
        "no_new_privs",
        "round_robin",
        "runtime_env",
    }
)


class Tree(NamedTuple):
    """The content of a checkout."""

    paths: frozenset[
        str
    ]  #: of files and folders, and all ends of them: `dispatcher/run.py`, `run.py`
    tops: frozenset[str]  #: folders at the root
    words: frozenset[str]  #: names in the sources


class Mention(NamedTuple):
    """A mention of something that does not exist."""

    line: int
    text: str


@lru_cache(maxsize=2)
def tree_of(root: Path) -> Tree:
    """Return the source files of a checkout and the words in them."""
    paths: set[str] = set()
    words: set[str] = set()
    files = [
        path
        for name in _SOURCES
        for path in (root / name).rglob("*")
        if "__pycache__" not in path.parts
    ]
    for path in [
        *files,
        *(one for one in root.iterdir() if one.is_file()),
        *(root / "docs").rglob("*"),
    ]:
        parts = path.relative_to(root).parts
        paths.update("/".join(parts[start:]) for start in range(len(parts)))
        if path.suffix in _TEXTS and path.is_file() and parts[0] != "docs":
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8", errors="replace")))
    for name in _GENERATED:
        if (root / name).is_file():
            words.update(re.findall(r"\w+", (root / name).read_text(encoding="utf-8")))
    return Tree(frozenset(paths), frozenset(_SOURCES), frozenset(words))


def gone(text: str, tree: Tree, commands: Any) -> Iterator[Mention]:
    """Yield everything that a document mentions and the checkout lacks.

    Args:
        text: the document
        tree: the checkout
        commands: the parser of the command line (typer.main.get_command)
    """
    own = frozenset(re.findall(r"\w+", " ".join(block for _, block in _BLOCK.findall(text))))
    for line, span in _spans(text):
        if span in _OF_OTHERS:
            continue
        if _PATH.fullmatch(span) and not _is_there(span, tree):
            yield Mention(line, f"`{span}`: there is no such file")
        elif _NAME.fullmatch(span) and span not in tree.words and span not in own:
            yield Mention(line, f"`{span}`: the code has no such name")
    for line, command in _commands(text):
        for problem in _problems(command, commands):
            yield Mention(line, f"pytriton-daemon {command}: {problem}")


def _spans(text: str) -> Iterator[tuple[int, str]]:
    """Yield code between backticks, outside of code blocks, with its line."""
    plain = _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in _SPAN.finditer(plain):
        yield plain.count("\n", 0, match.start()) + 1, match[1]


def _is_there(path: str, tree: Tree) -> bool:
    """Return whether a path exists in the checkout, or does not look like one of its paths."""
    path = path.rstrip("/")
    if "*" in path or re.search(r"(^|/)[A-Z]+(/|$)", path):  # `VERSION/model.py`
        return True
    is_source = re.search(r"\.(py|c|h|sh)$", path) is not None
    if not is_source and path.partition("/")[0] not in tree.tops:
        return True  # of a user, of tritonserver, of a URL
    return path in tree.paths


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Yield the command lines that follow `pytriton-daemon` in shell blocks and between backticks."""
    for block in _BLOCK.finditer(text):
        if block[1] in ("console", "sh", "bash", ""):
            for match in _COMMAND.finditer(block[2]):
                line = text.count("\n", 0, block.start(2) + match.start()) + 1
                yield line, match[1].replace("\\\n", " ")
    for line, span in _spans(text):
        for match in _COMMAND.finditer(span):
            yield line, match[1]


def _problems(command: str, parser: Any) -> Iterator[str]:
    """Yield the commands and flags of a command line that the parser does not know."""
    words = iter(_words(command))
    group = parser
    for word in words:
        if word == "--":
            return
        if word.startswith("-"):
            yield from _unknown_flag(word, group)
            continue
        subs: Mapping[str, Any] = getattr(group, "commands", {})
        if not subs:
            break
        if word not in subs:
            if group is not parser:  # `pytriton-daemon is installed` is no command
                yield f"there is no command {word!r}"
            return
        group = subs[word]
    else:
        return
    for word in words:
        if word == "--":
            return
        if word.startswith("-"):
            yield from _unknown_flag(word, group)


def _unknown_flag(word: str, command: Any) -> Iterator[str]:
    flag = word.strip("[],…").partition("=")[0]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    if flag and flag not in known | {"--help", "--install-completion", "--show-completion"}:
        yield f"there is no flag {flag}"


def _words(command: str) -> list[str]:
    """Return the words of a command line up to a comment, a pipe or a redirection."""
    text = re.split(r"\s#|[<>]", command, maxsplit=1)[0]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
