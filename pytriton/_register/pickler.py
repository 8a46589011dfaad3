"""The pickler of callables: cloudpickle's, but it decides per module whether code is pickled by reference or by value."""

from __future__ import annotations

import io
import sys
from collections import ChainMap
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

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
