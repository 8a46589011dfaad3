"""The lines of functions whose code travels: a worker shows them in tracebacks.

The file may be none that it can read (a cell of a notebook, a member of an archive, an example of doctest), or have
other lines by then. Only the functions' own lines travel, not the rest of the file, which is nobody's business.
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
from pytriton._register.project_sources import MOST_BYTES
from pytriton._register.worker_imports import is_installed

#: Not names of files: all code that is made of a text without a name has them, such as `__init__` of a dataclass.
_NAMELESS = ("<string>", "<stdin>")


def lines_of_all(functions: Iterable[FunctionType]) -> list[Lines]:
    """Return the lines of functions, in their order, as far as they are known and not too many."""
    found: list[Lines] = []
    size = 0
    for function in functions:
        lines = _lines_of(function)
        if lines is None:
            continue
        size += len(lines.text)
        if size > MOST_BYTES:
            break
        found.append(lines)
    return found


def _lines_of(function: FunctionType) -> Lines | None:
    code = function.__code__
    file, first = code.co_filename, code.co_firstlineno
    if file in _NAMELESS or is_installed(file):
        return None
    # With its globals: what was imported from an archive is read by its loader.
    lines = linecache.getlines(file, function.__globals__)[max(0, first - 1) :]
    if not lines:
        return None
    # A block has what has no code, such as the end of a call; of a lambda within a statement it may lack lines.
    count = max(_length_of_block(lines), max(_numbers(code)) - first + 1)
    return Lines(sendable(file), first, sendable("".join(lines[:count])))


def _length_of_block(lines: list[str]) -> int:
    try:
        return len(inspect.getblock(lines))
    except (SyntaxError, tokenize.TokenError):  # they begin within a statement
        return 1


def _numbers(code: CodeType) -> Iterator[int]:
    """Yield the numbers of the lines of code, and of the code in it."""
    yield code.co_firstlineno
    yield from (number for _, number in dis.findlinestarts(code) if number is not None)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _numbers(constant)
