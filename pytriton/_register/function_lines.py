"""The source lines of functions pickled by value, which a worker shows in tracebacks.

The worker may be unable to read the file (a notebook cell, an archive member, a doctest example), or the file may have
changed. Only the functions' own lines are sent, not the rest of the file.
"""

from __future__ import annotations

import dis
import inspect
import linecache
import tokenize
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType

from pytriton._protocol.errors import sendable
from pytriton._protocol.payload import Lines
from pytriton._register.project_sources import MAX_BYTES
from pytriton._register.worker_imports import is_installed

#: Not file names, but shared by all code compiled from a string without a name, such as `__init__` of a dataclass.
_NAMELESS = ("<string>", "<stdin>")


def lines_of_all(functions: Iterable[FunctionType]) -> list[Lines]:
    """Return the lines of functions, in order, as far as they are known and up to a maximum size."""
    found: list[Lines] = []
    size = 0
    for function in functions:
        lines = _lines_of(function)
        if lines is None:
            continue
        size += len(lines.text)
        if size > MAX_BYTES:
            break
        found.append(lines)
    return found


def _lines_of(function: FunctionType) -> Lines | None:
    code = function.__code__
    file, first = code.co_filename, code.co_firstlineno
    if file in _NAMELESS or is_installed(file):
        return None
    # With its globals: for modules imported from an archive, their loader reads the source.
    lines = linecache.getlines(file, function.__globals__)[max(0, first - 1) :]
    if not lines:
        return None
    # A block contains lines without code, such as the end of a call; for a lambda within a statement it may be
    # incomplete.
    count = max(_length_of_block(lines), max(_numbers(code)) - first + 1)
    return Lines(sendable(file), first, sendable("".join(lines[:count])))


def _length_of_block(lines: list[str]) -> int:
    try:
        return len(inspect.getblock(lines))
    except (SyntaxError, tokenize.TokenError):  # the lines begin within a statement
        return 1


def _numbers(code: CodeType) -> Iterator[int]:
    """Yield the line numbers of code and its nested code."""
    yield code.co_firstlineno
    yield from (number for _, number in dis.findlinestarts(code) if number is not None)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _numbers(constant)
