"""Make a payload of a callable: by reference where the worker can import it, by value where it cannot."""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import cloudpickle

from pytriton.exceptions import PicklingError
from pytriton.ipc.messages import World
from pytriton.ipc.payload import Header, pack

#: How deep the search for what cannot be pickled goes.
_DEEPEST = 8


def pack_callable(infer: Callable[..., Any], world: World, *, model_name: str) -> bytes:
    """Return the payload of a callable for a worker in `world`.

    What the worker can import travels as the name of its module, so that it runs the same code; what it cannot
    (`__main__`, notebooks, modules made at run time or found in other places) travels by value.

    Raises:
        PicklingError: something that the callable refers to cannot be pickled; it is named.
    """
    with ExitStack() as stack:
        for module in _modules_of(infer):
            if not _importable(module, world):
                stack.enter_context(_by_value(module))
        try:
            pickled = cloudpickle.dumps(infer)
        except Exception as error:  # whatever a __reduce__ raises
            offender = _find_offender(infer, _name(infer), 0)
            reason = f"{type(error).__name__}: {error}"
            raise PicklingError.naming(
                f"the callable {_name(infer)}", offender, reason, model_name=model_name
            ) from error
    # Code objects and classes by value are rebuilt by functions of cloudpickle, which the pickle names.
    by_reference = b"cloudpickle" not in pickled
    return pack(Header(sys.version_info[:2], by_reference), pickled)


# ── what the worker can import ───────────────────────────────────────────────────────────────────


def _modules_of(infer: Any) -> list[ModuleType]:
    """Return the modules that a callable and its layers come from, except `__main__`."""
    names: dict[str, None] = {}
    for part in _layers(infer):
        module = getattr(part, "__module__", None) or getattr(type(part), "__module__", None)
        if isinstance(module, str) and module not in ("__main__", "builtins"):
            names[module] = None
    return [sys.modules[name] for name in names if name in sys.modules]


def _layers(infer: Any) -> Iterator[Any]:
    """Yield a callable and all that it wraps: decorators, partials, methods, classes."""
    waiting = [infer]
    seen: set[int] = set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, functools.partial):
            waiting += [part.func, *part.args, *part.keywords.values()]
        if inspect.ismethod(part):
            waiting += [part.__self__, part.__func__]
        if hasattr(part, "__wrapped__"):
            waiting.append(part.__wrapped__)
        if inspect.isfunction(part):
            waiting += [value for _, value in _closure(part) if callable(value)]
        if inspect.isclass(part):
            waiting += [base for base in part.__mro__[1:] if base is not object]
        elif not inspect.isroutine(part):
            waiting.append(type(part))


def _importable(module: ModuleType, world: World) -> bool:
    """Whether a worker in `world` finds this very module under its name."""
    top = module.__name__.partition(".")[0]
    if top in sys.builtin_module_names or top in getattr(sys, "stdlib_module_names", ()):
        return True
    package = sys.modules.get(top, module)
    file = getattr(package, "__file__", None)
    paths = list(getattr(package, "__path__", ()))
    if file is None and not paths:
        return False  # made at run time
    if top == "pytriton":
        return True  # the daemon's own version stands first on every worker's path
    search: Sequence[str] | None = world.sys_path
    if not search:
        # Another interpreter's own path: it is not known here, but its site-packages may well have the module
        # if this interpreter has it there, and cannot have it if it lies elsewhere.
        return "site-packages" in (file or paths[0])
    found = importlib.machinery.PathFinder.find_spec(top, list(search))
    if found is None:
        return world.python == sys.executable and _found_by_hook(top)
    if found.origin is None or file is None:
        return found.submodule_search_locations is not None
    return os.path.realpath(found.origin) == os.path.realpath(file)


def _found_by_hook(name: str) -> bool:
    """Whether an import hook of this environment's own (an editable install) finds a module."""
    for finder in sys.meta_path:
        if type(finder).__module__.startswith("__editable__") or (
            inspect.isclass(finder) and finder.__module__.startswith("__editable__")
        ):
            if finder.find_spec(name, None) is not None:
                return True
    return False


@contextmanager
def _by_value(module: ModuleType) -> Iterator[None]:
    """Have cloudpickle take a module's functions and classes by value meanwhile."""
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield  # the user said so already
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


# ── what cannot be pickled ───────────────────────────────────────────────────────────────────────


def _find_offender(thing: Any, name: str, depth: int) -> str:
    """Return words for the smallest part of `thing` that cannot be pickled."""
    if depth < _DEEPEST:
        for part_name, part in _parts(thing, name):
            if not _can_pickle(part):
                return _find_offender(part, part_name, depth + 1)
    kind = type(thing)
    return f"{name} (a {kind.__module__}.{kind.__qualname__})"


def _parts(thing: Any, name: str) -> Iterator[tuple[str, Any]]:
    if inspect.ismethod(thing):
        yield f"`{_short(name)}.__self__`", thing.__self__
    elif isinstance(thing, functools.partial):
        yield f"the function of partial {name}", thing.func
        yield from _items(f"argument of partial {name}", enumerate(thing.args))
        yield from _items(f"argument of partial {name}", thing.keywords.items())
    elif inspect.isfunction(thing):
        where = f"function {_name(thing)}"
        for variable, value in _closure(thing):
            yield f"closure variable `{variable}` of {where}", value
        for variable in thing.__code__.co_names:
            if variable in thing.__globals__ and not inspect.ismodule(thing.__globals__[variable]):
                yield f"global variable `{variable}`, used by {where}", thing.__globals__[variable]
        yield from _items(f"default of {where}", enumerate(thing.__defaults__ or ()))
    elif isinstance(thing, dict):
        yield from _items(f"item of {name}", thing.items())
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from _items(f"element of {name}", enumerate(thing))
    elif hasattr(thing, "__dict__") and not inspect.ismodule(thing):
        for attribute, value in vars(thing).items():
            yield f"attribute `{attribute}` of {name}", value


def _items(what: str, pairs: Any) -> Iterator[tuple[str, Any]]:
    for key, value in pairs:
        yield f"{what} [{key!r:.40}]", value


def _closure(function: Any) -> list[tuple[str, Any]]:
    found = []
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found.append((variable, cell.cell_contents))
        except ValueError:  # not assigned yet
            continue
    return found


def _can_pickle(thing: Any) -> bool:
    try:
        cloudpickle.dumps(thing)
    except Exception:  # whatever a __reduce__ raises
        return False
    return True


def _name(thing: Any) -> str:
    """Return how a user knows a callable: its name and where it stands."""
    function = inspect.unwrap(thing) if callable(thing) else thing
    code = getattr(function, "__code__", None)
    name = getattr(thing, "__qualname__", None) or f"object of class {type(thing).__qualname__}"
    where = f" at {os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else ""
    return f"`{name}`{where}"


def _short(name: str) -> str:
    return name.split("`")[1] if name.count("`") >= 2 else name
