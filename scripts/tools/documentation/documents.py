"""Check the documents: links, navigation, code blocks, and the files, names and commands they mention. See scripts/docs."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer.main
import yaml

from documentation import tutorials
from pytriton._cli.app import app

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Folders whose files and names documents may mention.
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
_SOURCE_SUFFIXES = (
    ".py",
    ".c",
    ".h",
    ".js",
    ".json",
    ".toml",
    ".yaml",
    ".yml",
    ".md",
    ".pbtxt",
    "",
)
#: Generated pages. They contain names that the code has in another form.
_GENERATED = ("docs/reference/configuration.md", "docs/reference/metrics.md")
#: Names and files of users and of other programs.
_FOREIGN = frozenset(
    {
        "backends/pytriton/model.py",
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
_FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.M | re.S)
_INDENTED = re.compile(r"(?<=\n\n)(?:    [^\n]*\n)+")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PATH = re.compile(r"[\w*.-]+(?:/[\w*.-]+)*\.(?:py|c|h|sh)|[\w.-]+(?:/[\w.-]+)+/?")
_NAME = re.compile(r"(?:[a-z][a-z0-9]*(?:_[a-z0-9]+)+|[A-Z]+_[A-Z_]+)")
_PROGRAM = re.compile(r"(?:\S*bin/)?pytriton-daemon")
_OPERATOR = re.compile(r"[|&;()<>]+")
#: Errors of click that a document's placeholders for values cannot cause.
_COMMAND_ERRORS = ("NoSuchOption", "UsageError", "MissingParameter")


class Finding(NamedTuple):
    """A problem in a document."""

    path: Path
    line: int
    text: str


class Block(NamedTuple):
    """A fenced code block."""

    line: int
    language: str
    code: str


class Tree(NamedTuple):
    """The names in a checkout.

    Attributes:
        paths: paths of files and folders, and their endings: `dispatcher/run.py`, `run.py`
        words: all words in the sources
    """

    paths: frozenset[str]
    words: frozenset[str]


def all_documents(root: Path) -> list[Path]:
    """Return all documents of a checkout."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])


def findings(root: Path) -> Iterator[Finding]:
    """Yield all problems in the documents of a checkout."""
    yield from orphans(root)
    tree = tree_of(root)
    for path in all_documents(root):
        yield from dead_links(path)
        text = path.read_text(encoding="utf-8")
        problems = [*invalid_code(text)]
        if path.name != "CHANGELOG.md":  # mentions what no longer exists
            problems += stale_mentions(text, tree)
        for line, problem in problems:
            yield Finding(path, line, problem)


def orphans(root: Path) -> Iterator[Finding]:
    """Yield the pages that are missing from the site's navigation."""
    navigation = root / "mkdocs.yml"
    text = navigation.read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = set(re.findall(r"(?::|-) ([\w/-]+\.md)$", text, re.M))
    for path in sorted(root.glob("docs/**/*.md")):
        if path.relative_to(root / "docs").as_posix() not in named:
            yield Finding(path, 1, "missing from the navigation in mkdocs.yml")


def dead_links(path: Path) -> Iterator[Finding]:
    """Yield the links of a document to files or headings that do not exist. External links are not checked."""
    text = _without_code(path.read_text(encoding="utf-8"))
    for match in _LINK.finditer(text):
        target, _, anchor = match[1].partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        place = path.parent / target if target else path
        line = _line(text, match.start())
        if not place.exists():
            yield Finding(path, line, f"{match[1]}: no such file")
        elif anchor and anchor not in anchors(place.read_text(encoding="utf-8")):
            yield Finding(path, line, f"{match[1]}: no such heading")


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub creates them."""
    headings = re.findall(r"^#+ +(.+?) *$", _without_code(text), re.M)
    plain = [re.sub(r"[^\w\- ]", "", one.lower()) for one in headings]
    return {one.replace(" ", "-") for one in plain}


def invalid_code(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the error of each block of Python, TOML or YAML that cannot be parsed."""
    for block in blocks(text):
        if error := _syntax_error(block):
            yield block.line, f"invalid {block.language}: {error}"


def _syntax_error(block: Block) -> str:
    try:
        if block.language == "python":  # may be a part of a program, with `await` at the top
            compile(block.code, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif block.language == "toml":
            tomllib.loads(block.code)
        elif block.language == "yaml":
            list(yaml.safe_load_all(block.code))
    except (SyntaxError, ValueError, yaml.YAMLError) as error:
        return str(error)
    return ""


def stale_mentions(text: str, tree: Tree) -> Iterator[tuple[int, str]]:
    """Yield the line of each file, name, command and flag that a document mentions and the checkout lacks.

    Checks code between backticks and commands in code blocks.
    """
    own = set(re.findall(r"\w+", " ".join(block.code for block in blocks(text))))
    for line, span in _spans(text):
        if span in _FOREIGN:
            continue
        if _PATH.fullmatch(span) and not _exists(span, tree):
            yield line, f"`{span}`: no such file"
        elif _NAME.fullmatch(span) and span not in tree.words and span not in own:
            yield line, f"`{span}`: the code has no such name"
        for call in calls(span):
            # Prose may mention a command without its arguments, or with placeholders.
            error = command_error(call) or ""
            if error.startswith("No such") and not call[0].isupper():
                yield line, f"`{span}`: {error}"
    for block in blocks(text):
        if block.language not in ("console", "sh", "bash"):
            continue
        lines = block.code.replace("\\\n", " ").splitlines()
        if block.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for command in lines:
            for call in calls(command):
                if rejection := command_error(call):
                    yield block.line, f"pytriton-daemon {' '.join(call)}: {rejection}"


@cache
def tree_of(root: Path) -> Tree:
    """Return the paths and words of a checkout."""
    paths: set[str] = set()
    words: set[str] = set()
    files = [path for name in _SOURCES for path in (root / name).rglob("*")]
    files += [path for path in root.iterdir() if path.is_file()]
    for path in [*files, *(root / "docs").rglob("*")]:
        parts = path.relative_to(root).parts
        if "__pycache__" in parts:
            continue
        paths.update("/".join(parts[start:]) for start in range(len(parts)))
        is_source = parts[0] != "docs" or "/".join(parts) in _GENERATED
        if is_source and path.suffix in _SOURCE_SUFFIXES and path.is_file():
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8", errors="replace")))
    return Tree(frozenset(paths), frozenset(words))


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced code blocks of a document."""
    for match in _FENCED.finditer(text):
        yield Block(_line(text, match.start()), match[2], textwrap.dedent(match[3]))


def calls(command: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of `pytriton-daemon` in a command line."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] | None = None
    try:
        tokens = list(lexer)
    except ValueError:  # the quote ends on a later line
        return
    for token in [*tokens, ";"]:
        if _PROGRAM.fullmatch(token) and words is None:
            words = []
        elif _OPERATOR.fullmatch(token):
            if words is not None:
                yield words
            words = None
        elif words is not None:
            words.append(token)


def command_error(words: list[str]) -> str | None:
    """Return why the command line rejects the arguments; None if it accepts them."""
    command = command_line()
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            known = ("--version", "--help", "--install-completion", "--show-completion")
            return None if words[0] in known else f"No such option: {words[0]}"
        subcommand = command.get_command(None, words[0])
        if subcommand is None:
            return f"No such command: {words[0]}"
        command, words = subcommand, words[1:]
    if hasattr(command, "commands"):
        return None
    try:
        command.make_context("pytriton-daemon", list(words))
    except Exception as error:  # click's, or typer's copy of click's
        return str(error) if type(error).__name__ in _COMMAND_ERRORS else None
    return None


@cache
def command_line() -> Any:
    """Return the parser of the command line. Cached, because creating it is slow."""
    return typer.main.get_command(app)


def _exists(path: str, tree: Tree) -> bool:
    """Return whether a path exists in the checkout, or does not look like one of its paths."""
    path = path.rstrip("/")
    if "*" in path or re.search(r"(^|/)[A-Z]+(/|$)", path):  # `VERSION/model.py`
        return True
    is_source = re.search(r"\.(py|c|h|sh)$", path) is not None
    if not is_source and path.partition("/")[0] not in _SOURCES:
        return True  # a path of a user, of tritonserver, of a URL
    return path in tree.paths


def _spans(text: str) -> Iterator[tuple[int, str]]:
    """Yield the code between backticks, with its line."""
    plain = _without_code(text)
    for match in _SPAN.finditer(plain):
        yield _line(plain, match.start()), match[1]


def _without_code(text: str) -> str:
    """Return a text with its code blocks replaced by empty lines."""
    for pattern in (_FENCED, _INDENTED):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    return text


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def main() -> int:
    """Print all problems; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="check all documents (the default)")
    parser.add_argument("--write", action="store_true", help="copy the files of the tutorials")
    arguments = parser.parse_args()
    root: Path = arguments.root
    if arguments.write:
        for page in tutorials.write(root):
            print(f"wrote {page.relative_to(root)}")
        return 0
    found = list(findings(root))
    for one in found:
        print(f"{one.path.relative_to(root)}:{one.line}: {one.text}")
    if not found:
        print(f"checked {len(all_documents(root))} documents: no problems found")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
