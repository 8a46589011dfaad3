"""Loads a declared callable by its name, MODULE:ATTRIBUTE, for the command line."""

from __future__ import annotations

import dis
import importlib
import inspect
import linecache
import os
import sys
import tokenize
import traceback
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from pytriton._protocol.errors import sendable
from pytriton._protocol.payload import Lines
from pytriton._register.project_sources import MAX_BYTES
from pytriton._register.worker_imports import is_installed
from pytriton.declaration import declaration_of
from pytriton.exceptions import PyTritonBadParameterError


def load_target(text: str) -> Any:
    """Import MODULE and return its ATTRIBUTE (which may have dots).

    Raises:
        PyTritonBadParameterError: the text is malformed, MODULE or ATTRIBUTE does not exist, or the import failed, in
            which case the text includes the traceback.
    """
    module_name, colon, attribute = text.partition(":")
    if not colon or not module_name or not attribute:
        module = text.partition(":")[0].rpartition("/")[2].removesuffix(".py")
        raise PyTritonBadParameterError(
            f"{text!r} is not MODULE:ATTRIBUTE: name a callable of the module, such as "
            f"{module or 'mymodule'}:classify"
        )
    if "/" in module_name or module_name.endswith(".py"):
        folder, _, file = module_name.rpartition("/")
        where = f"in the folder {folder}, " if folder else ""
        raise PyTritonBadParameterError(
            f"{module_name!r} is a file, but MODULE must be the name of a module: {where}"
            f"use {file.removesuffix('.py')}:{attribute}"
        )
    cwd = os.getcwd()
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
    sys.argv[:] = [module_name]  # the module and its workers must not see our arguments
    found = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            what = (
                f"the module {module_name!r}" if found is sys.modules[module_name] else repr(found)
            )
            raise PyTritonBadParameterError(f"{what} has no attribute {part!r} (of {text})")
        found = getattr(found, part)
    return found


def check_declared(target: Any, text: str) -> None:
    """Check that a command, which exits at once, can register a callable with its declaration.

    Raises:
        PyTritonBadParameterError: it has no declaration, or one that requires the process to stay alive.
    """
    declaration = declaration_of(target)
    if declaration is None:
        raise PyTritonBadParameterError(
            f"{text} does not declare its inputs and outputs. Decorate it with "
            "@pytriton.declare(inputs=[...], outputs=[...]), or register it from Python with "
            "pytriton.connect().register(...)."
        )
    if declaration.options.get("isolation") == "thread":
        raise PyTritonBadParameterError(
            f"{text} is declared with isolation='thread', to run in the process that registers it, but "
            "this one exits at once. Register it from a program that keeps running: pytriton.connect().register(...)."
        )


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise PyTritonBadParameterError(
                f"module {missing!r} not found in {os.getcwd()} or on the search path of "
                f"{sys.executable}"
            ) from None
        raise _import_failed(module_name) from None
    except Exception:
        raise _import_failed(module_name) from None


def _import_failed(module_name: str) -> PyTritonBadParameterError:
    error = sys.exc_info()[1]
    text = f"importing {module_name} failed: {type(error).__name__}: {error}\n{traceback.format_exc().rstrip()}"
    return PyTritonBadParameterError(text)


# ── The source lines of functions pickled by value, which a worker shows in tracebacks ──

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
