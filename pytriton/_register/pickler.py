"""The pickler of callables: cloudpickle's, but it decides per module whether code is pickled by reference or by value."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import io
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from pytriton._protocol.arguments import with_article
from pytriton._protocol.payload import BIT_GENERATORS, make_bit_generator, memory_module

PROTOCOL = 5
#: Position of the file name among the arguments of `types.CodeType`, in Python 3.8 and newer.
_FILE_NAME = 10
#: Attributes of a module set by its import machinery.
_OF_IMPORT = frozenset({"__builtins__", "__cached__", "__loader__", "__name__", "__spec__"})


class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """A pickler that decides for each module, when it meets one of its objects, whether to pickle its code by value.

    Functions of a module pickled by value use the namespace of the worker's module of that name as their globals
    (`pytriton.worker.memory_modules`), so they also find what they use by name there.

    Attributes:
        codes: code pickled by value; if there is any, only this version of Python can read the pickle
        functions: functions pickled by value
        defined: for each module pickled by value, the pickled functions and classes that can be found in it by their
            own name
    """

    def __init__(
        self, file: Any, see: Callable[[ModuleType], bool], *, in_modules: bool = True
    ) -> None:
        """Create a pickler.

        Args:
            file: receives the pickle
            see: called with the module of each object; returns whether the worker can import it
            in_modules: functions share the namespaces of the worker's modules; otherwise they have their own
        """
        # Before pickle's own __init__, which reads it.
        self.dispatch_table: ChainMap[type, Callable[[Any], Any]] = ChainMap(
            _of_numpy_random(), cloudpickle.CloudPickler.dispatch_table
        )
        super().__init__(file, protocol=PROTOCOL)
        self._see = see
        self._in_modules = in_modules
        self.codes: list[CodeType] = []
        self.functions: list[FunctionType] = []
        self.defined: dict[str, dict[str, Any]] = {}
        #: Functions by the id of their code, which is pickled after them.
        self._met: dict[int, FunctionType] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Reduce an object. pickle calls this for every object except those of basic types (documented in `pickle`)."""
        if isinstance(obj, CodeType):
            self.codes.append(obj)
            if id(obj) in self._met:
                self.functions.append(self._met.pop(id(obj)))
            return self._reduce_code(obj)
        if isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):
            # cloudpickle would send the current content, without the name.
            raise TypeError("cannot pickle an open file: open it in the worker")
        if isinstance(obj, _Namespace):
            return vars, (Named(obj["name"]),)
        if isinstance(obj, Named):
            return memory_module, (obj.module,)
        if isinstance(obj, ModuleType):
            if not self._see(obj) and self._in_modules and _is_current(obj):
                return _reduce_module(obj)
        elif isinstance(obj, (FunctionType, type)):
            module = sys.modules.get(_module_name(obj))
            if isinstance(module, ModuleType) and not self._see(module):
                self._define(module, obj)
            if isinstance(obj, FunctionType):
                self._met[id(obj.__code__)] = obj
                self._share_namespace(obj)
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:
            reduced[2][0]["__qualname__"] = (
                obj.__qualname__
            )  # cloudpickle loses that of a nested class
        return reduced

    def _define(self, module: ModuleType, obj: Any) -> None:
        """Record that the worker's module must define a function or class under its name."""
        if is_found_by_name(module, obj):
            self.defined.setdefault(module.__name__, {})[obj.__qualname__] = obj

    def _share_namespace(self, function: FunctionType) -> None:
        """Make a function of a module pickled by value use the globals of the worker's module."""
        module = module_of_globals(function)
        if self._in_modules and module is not None and not self._see(module):
            # cloudpickle pickles this instead of the globals of all functions of the module.
            self.globals_ref.setdefault(id(function.__globals__), _Namespace(name=module.__name__))

    def _reduce_code(self, code: CodeType) -> Any:
        """Reduce code as cloudpickle does, but keep its file name.

        Since 3.1.3, cloudpickle writes "<dynamic-code>" instead: tracebacks would show neither files nor source.
        """
        make, arguments = self.dispatch_table[CodeType](code)
        if make is CodeType:
            after = _FILE_NAME + 1
            arguments = (*arguments[:_FILE_NAME], code.co_filename, *arguments[after:])
        return make, arguments


class Named:
    """A placeholder for the worker's module of that name; only the name is pickled."""

    def __init__(self, module: str) -> None:
        self.module = module


class _Namespace(dict[str, str]):
    """A placeholder for the globals of the worker's module of that name: pickled as `vars(module)`."""


def module_of_globals(function: FunctionType) -> ModuleType | None:
    """Return the module whose namespace is a function's globals; None if there is none."""
    name = function.__globals__.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    is_its_own = isinstance(module, ModuleType) and vars(module) is function.__globals__
    return module if is_its_own else None


def is_found_by_name(module: ModuleType, obj: Any) -> bool:
    """Return True if a module has a function or class under its own name, so that an ordinary pickle refers to it."""
    name = getattr(obj, "__qualname__", None)
    return isinstance(name, str) and vars(module).get(name) is obj


def _of_numpy_random() -> dict[type, Callable[[Any], Any]]:
    """Return the reducers of random generators: numpy's own differ between its major versions."""
    random: Any = sys.modules.get("numpy.random")
    if random is None:
        return {}
    generators = (getattr(random, name, None) for name in BIT_GENERATORS)
    return {
        **{kind: _reduce_bit_generator for kind in generators if kind is not None},
        random.Generator: lambda one: (type(one), (one.bit_generator,)),
        random.RandomState: lambda one: (
            type(one),
            (one._bit_generator,),
            one.get_state(legacy=False),
        ),
    }


def _reduce_bit_generator(one: Any) -> Any:
    seed = getattr(one, "seed_seq", None) or getattr(one, "_seed_seq", None)
    return make_bit_generator, (type(one).__name__, seed, one.state)


def _is_current(module: ModuleType) -> bool:
    return sys.modules.get(module.__name__) is module


def _reduce_module(module: ModuleType) -> Any:
    """Reduce a module pickled by value to the worker's module of that name, with the content of this one.

    `__main__` is only referenced by name: not everything in a script is meant for a worker, or can be pickled.
    """
    make = (memory_module, (module.__name__,))
    if module.__name__ == "__main__":
        return make
    return (
        *make,
        {name: value for name, value in vars(module).items() if name not in _OF_IMPORT},
    )


def _module_name(thing: Any) -> str:
    name = getattr(thing, "__module__", None)
    return name if isinstance(name, str) else ""


# ── Names the object that cannot be pickled, so that users find it in their own code ──

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
