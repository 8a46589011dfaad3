"""Names the object that cannot be pickled, so that users find it in their own code.

attribute `lock` (a _thread.lock) of closure variable `model` (a serve.Model) of function predict at
serve.py:12
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from pytriton._protocol.words import with_article

#: A longer chain is not helpful.
_DEEPEST = 12
_Part = tuple[str, Any]
#: Returns the exception raised by pickling an object, or None if it can be pickled.
TryToPickle = Callable[[Any], "Exception | None"]


def find_offender(thing: Any, try_to_pickle: TryToPickle) -> tuple[str, Exception | None]:
    """Describe the smallest part of `thing` that cannot be pickled, and return its exception.

    Descends from each object into the first of its parts that cannot be pickled by itself.
    """
    words = [describe(thing)]
    reason: Exception | None = None
    seen = {id(thing)}
    for _ in range(_DEEPEST):
        for label, part in _parts(thing):
            if id(part) in seen:
                continue
            error = try_to_pickle(part)
            if error is not None:
                words += [label] if label else []
                seen.add(id(part))
                thing, reason = part, error
                break
        else:
            break
    kind = f" {_kind(thing)}" if len(words) > 1 else ""
    return " of ".join(reversed(words)) + kind, reason


def describe(thing: Any) -> str:
    """Describe a callable: its kind, its name, and where it is defined."""
    if isinstance(thing, functools.partial):
        return f"functools.partial of {describe(thing.func)}"
    if inspect.ismethod(thing):
        return f"method {thing.__qualname__}{_where(thing.__func__)}"
    if inspect.isclass(thing):
        return f"class {thing.__module__}.{thing.__qualname__}"
    if inspect.isroutine(thing):
        name = getattr(thing, "__name__", repr(thing))
        what = "lambda" if name == "<lambda>" else f"function {name}"
        return f"{what}{_where(thing)}"
    return f"object {_kind(thing)}"


def _where(function: Any) -> str:
    code = getattr(
        inspect.unwrap(function), "__code__", None
    )  # the user does not know a decorator's code
    if not isinstance(code, CodeType):
        return ""
    return f" at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _kind(thing: Any) -> str:
    if inspect.isroutine(thing) or inspect.isclass(thing):
        return f"({describe(thing)})"
    kind = type(thing)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"({with_article(name)})"


def _parts(thing: Any) -> Iterator[_Part]:
    """Yield the parts that are pickled along with an object."""
    if inspect.ismethod(thing):
        yield "the object", thing.__self__
        yield "the function", thing.__func__
    elif inspect.isfunction(thing):
        yield from _function_parts(thing)
    elif inspect.ismodule(thing):
        yield from ((f"`{name}`", part) for name, part in vars(thing).items() if name[:2] != "__")
    elif inspect.isclass(thing):
        yield from ((f"base class {base.__qualname__}", base) for base in thing.__bases__)
        skipped = ("__dict__", "__weakref__", "__module__", "__doc__")
        yield from (
            (f"class attribute `{name}`", part)
            for name, part in vars(thing).items()
            if name not in skipped
        )
    elif isinstance(thing, (staticmethod, classmethod)):
        yield "the function", thing.__func__
    elif type(thing) in (list, tuple, set, frozenset):
        yield from ((f"item {index}", part) for index, part in enumerate(thing))
    elif type(thing) is dict:
        yield from _dict_parts("item", thing)
    else:
        yield from _object_parts(thing)


def _function_parts(function: Any) -> Iterator[_Part]:
    if hasattr(function, "__wrapped__"):
        yield "", function.__wrapped__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield f"closure variable `{name}`", cell.cell_contents
    for name in sorted(globals_used(function.__code__)):
        if name in function.__globals__:
            yield f"global variable `{name}`", function.__globals__[name]
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function, follow_wrapped=False).parameters.items()
        if parameter.default is not parameter.empty
    }
    yield from _dict_parts("default of parameter", defaults)
    yield from _dict_parts("attribute", vars(function))


def globals_used(code: CodeType) -> set[str]:
    """Return the names of global variables in a function's code, including nested functions."""
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= globals_used(constant)
    return names


def _object_parts(thing: Any) -> Iterator[_Part]:
    """Yield what the object itself passes to pickle: its __getstate__ may omit attributes."""
    try:
        reduced = thing.__reduce_ex__(5)
    except Exception:  # the object itself cannot be pickled
        return
    if not isinstance(reduced, tuple):
        return
    _, arguments, state, items, pairs = (*reduced[:5], None, None, None)[:5]
    if isinstance(thing, functools.partial):
        yield "the function", thing.func
        yield from ((f"argument {index}", part) for index, part in enumerate(thing.args))
        yield from _dict_parts("argument", thing.keywords)
    # A state is a dict, or with __slots__ a pair of dicts.
    for layer in state if isinstance(state, tuple) else (state,):
        if isinstance(layer, dict):
            yield from _dict_parts("attribute", layer)
        elif layer is not None:
            yield "the state", layer
    yield from (
        ("the class", part) if part is type(thing) else (f"constructor argument {index}", part)
        for index, part in enumerate(arguments or ())
    )
    yield from ((f"item {index}", part) for index, part in enumerate(items or ()))
    yield from ((f"item {key!r:.40}", part) for key, part in pairs or ())


def _dict_parts(what: str, parts: dict[Any, Any]) -> Iterator[_Part]:
    for key, part in parts.items():
        name = f"`{key}`" if isinstance(key, str) else f"{key!r:.40}"
        yield f"{what} {name}", part
