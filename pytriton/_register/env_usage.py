"""Finds the environment variables that a callable names in its code, without running it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any

from pytriton._register.pickler import globals_used
from pytriton._register.worker_imports import is_installed

#: Code that reads a variable contains one of these names.
_READERS = frozenset({"environ", "environb", "getenv"})
#: Maximum number of objects to examine: a callable may refer to a whole program.
_MAX_OBJECTS = 2000


def warn_of_missing(model_name: str, targets: Iterable[Any], stayed: Iterable[str]) -> None:
    """Warn of variables that the callables read, that are set here, and that are not forwarded."""
    missing = sorted(variables_read(targets).intersection(stayed))
    if not missing:
        return
    words = ", ".join(missing)
    several = len(missing) > 1
    warnings.warn(
        f"Model {model_name!r} reads {words} from its environment. {'They are' if several else 'It is'} set here, but "
        f"{'are' if several else 'is'} not forwarded, because {'they look' if several else 'it looks'} like a secret or "
        f"{'belong' if several else 'belongs'} to this session: register(..., env={missing}) sends "
        f"{'them' if several else 'it'}, and env={{{missing[0]!r}: None}} declares it unnecessary.",
        stacklevel=first_outside(),
    )


def variables_read(targets: Iterable[Any]) -> set[str]:
    """Return the strings in the code of callables, and of what they use, that may be names of variables.

    Only strings in functions that use os.environ or os.getenv count. Code of installed packages is skipped.
    """
    found: set[str] = set()
    waiting = list(targets)
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_OBJECTS:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for part in _parts(thing):
            if isinstance(part, CodeType):
                found |= _strings(part)
            else:
                waiting.append(part)
    return found


def _parts(thing: Any) -> Iterator[Any]:
    """Yield an object's code, and other objects that may run when it is called."""
    if isinstance(thing, functools.partial):
        yield thing.func
    elif inspect.ismethod(thing):
        yield thing.__func__
        yield thing.__self__
    elif inspect.isfunction(thing):
        if _is_foreign(thing):
            return
        yield thing.__code__
        yield from _values(thing)
    elif inspect.isclass(thing):
        if not _is_foreign(thing):
            members = (inspect.getattr_static(thing, name) for name in dir(thing))
            yield from (getattr(member, "__func__", member) for member in members)
    elif not isinstance(thing, ModuleType) and not _is_foreign(type(thing)):
        yield type(thing)
        yield from getattr(thing, "__dict__", {}).values()


def _values(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            yield cell.cell_contents
    for name in globals_used(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield wrapped


def _is_foreign(thing: Any) -> bool:
    """Return True if code is not the user's own: built in, or from an installed package."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        return False
    file = getattr(module, "__file__", None)
    return file is None or module.__name__.split(".")[0] == "pytriton" or is_installed(file)


def _strings(code: CodeType) -> set[str]:
    """Return the strings of the code objects, nested ones included, that name a reader."""
    inside = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    found = set().union(*map(_strings, inside)) if inside else set()
    if not _READERS.isdisjoint(code.co_names) or not _READERS.isdisjoint(code.co_freevars):
        found |= {constant for constant in code.co_consts if isinstance(constant, str)}
    return found


def first_outside() -> int:
    """Return the `stacklevel` of the user's own code."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # pytriton
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(
        package
    ):
        frame = frame.f_back
        level += 1
    return level
