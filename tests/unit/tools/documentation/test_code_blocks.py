"""Blocks of code in the documents, also those that no test runs: Python compiles, TOML and YAML parse, and the command
line takes each command as it stands."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from documentation import documents

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[4]
_BLOCK = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", re.M | re.S)
_CALL = re.compile(r"(?:\S*bin/)?pytriton-daemon")
_OPERATOR = re.compile(r"[|&;()<>]+")
#: Values that stand for others, where a number or a choice is wanted, are no fault of a document.
_FAULTS = ("NoSuchOption", "UsageError", "MissingParameter")


class Block(NamedTuple):
    """A block of code in a document."""

    path: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def _blocks() -> Iterator[Block]:
    for path in documents.all_documents(ROOT):
        text = path.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Block(path, line, match[2], textwrap.dedent(match[3]))


BLOCKS = list(_blocks())


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    """Also parts of a program, such as an `await` outside of a function."""
    compile(block.text, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_toml_parses(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml_parses(block: Block) -> None:
    assert list(yaml.safe_load_all(block.text))


def commands(text: str, prompt: bool) -> Iterator[list[str]]:
    """Yield the words of each call of `pytriton-daemon` in a block, without that word; `prompt`: lines begin with $."""
    text = text.replace("\\\n", " ")
    lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    for line in lines if prompt else text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] | None = None
        try:
            tokens = list(lexer)
        except ValueError:  # the quote is closed on a later line, and is no part of a call
            continue
        for token in [*tokens, ";"]:
            if _CALL.fullmatch(token) and words is None:
                words = []
            elif _OPERATOR.fullmatch(token):
                if words is not None:
                    yield words
                words = None
            elif words is not None:
                words.append(token)


def fault(words: list[str]) -> str | None:
    """Return what the command line has against a call; None if it takes it."""
    command: Any = documents.command_line()
    name = "pytriton-daemon"
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            return None if words[0] in ("--version", "--install-completion") else f"no {words[0]}"
        following = command.get_command(None, words[0])
        if following is None:
            return f"{name} has no command {words[0]}"
        name, command, words = words[0], following, words[1:]
    try:
        command.make_context(name, list(words), resilient_parsing=False)
    except Exception as error:  # click's own, or typer's copy of it
        return str(error) if type(error).__name__ in _FAULTS else None
    return None


CALLS = [
    pytest.param(words, id=f"{block}-{' '.join(words)[:60]}")
    for block in of("console", "sh", "bash")
    for words in commands(block.text, block.language == "console")
]


@pytest.mark.parametrize("words", CALLS)
def test_the_command_line_takes_it(words: list[str]) -> None:
    assert fault(words) is None


def test_calls_are_found() -> None:
    text = "$ a | /x/bin/pytriton-daemon stop; sudo pytriton-daemon logs \\\n  m --lines 3 # last\nprinted\n"
    assert list(commands(text, True)) == [["stop"], ["logs", "m", "--lines", "3"]]
    assert list(commands("x=$(pytriton-daemon status --json)\n", False)) == [["status", "--json"]]
    assert len(CALLS) > 60


@pytest.mark.parametrize(
    "call", ["frobnicate", "stop --now", "scale", "keys frobnicate", "logs a b c"]
)
def test_faults_are_found(call: str) -> None:
    assert fault(call.split()) is not None
