"""The pickler of callables: cloudpickle's, which decides for each module whether its code goes by name or by value."""

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
#: Where the name of the file stands among the arguments of `types.CodeType`, in every Python from 3.8 on.
_FILE_NAME = 10
#: Attributes of a module that its import machinery sets.
_OF_IMPORT = frozenset({"__builtins__", "__cached__", "__loader__", "__name__", "__spec__"})


class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """A pickler that decides for each module, when it meets something of it, whether code goes by value.

    Functions of a module that goes by value get the namespace of the worker's module of that name as their globals
    (`pytriton.worker.memory_modules`), so that what they use is found there by name, too.

    Attributes:
        codes: code that travels; with any, only this version of Python can read the pickle
        functions: those whose code travels
        defined: for each module that goes by value, the functions and classes met that are found in it by their own
            name
    """

    def __init__(
        self, file: Any, see: Callable[[ModuleType], bool], *, in_modules: bool = True
    ) -> None:
        """Make a pickler.

        Args:
            file: takes the pickle
            see: is called with each module that something is of; returns whether the worker imports it
            in_modules: functions share the namespaces of the worker's modules; without, they have one of their own
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
        #: Functions by the id of their code, which comes after them.
        self._met: dict[int, FunctionType] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for every object but the plainest (documented in `pickle`)."""
        if isinstance(obj, CodeType):
            self.codes.append(obj)
            if id(obj) in self._met:
                self.functions.append(self._met.pop(id(obj)))
            return self._reduce_code(obj)
        if isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):
            # cloudpickle would send what is in it, as it is now, without its name.
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
        """Note what the worker's module has to have under the name of a function or class."""
        if is_found_by_name(module, obj):
            self.defined.setdefault(module.__name__, {})[obj.__qualname__] = obj

    def _share_namespace(self, function: FunctionType) -> None:
        """Have a function of a module that goes by value use the globals of the worker's module."""
        module = module_of_globals(function)
        if self._in_modules and module is not None and not self._see(module):
            # cloudpickle pickles this in the place of the globals of all functions of the module.
            self.globals_ref.setdefault(id(function.__globals__), _Namespace(name=module.__name__))

    def _reduce_code(self, code: CodeType) -> Any:
        """Reduce code as cloudpickle does, and keep the name of its file.

        From 3.1.3 on, cloudpickle writes "<dynamic-code>" instead: tracebacks would show neither files nor source.
        """
        make, arguments = self.dispatch_table[CodeType](code)
        if make is CodeType:
            after = _FILE_NAME + 1
            arguments = (*arguments[:_FILE_NAME], code.co_filename, *arguments[after:])
        return make, arguments


class Named:
    """Stands for the worker's module of a name: only the name travels."""

    def __init__(self, module: str) -> None:
        self.module = module


class _Namespace(dict[str, str]):
    """Stands for the globals of the worker's module of a name: pickled as `vars(module)`."""


def module_of_globals(function: FunctionType) -> ModuleType | None:
    """Return the module whose namespace is a function's globals; None if it is no module's."""
    name = function.__globals__.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    is_its_own = isinstance(module, ModuleType) and vars(module) is function.__globals__
    return module if is_its_own else None


def is_found_by_name(module: ModuleType, obj: Any) -> bool:
    """Return whether a module has a function or class under its own name, so that an ordinary pickle names it."""
    name = getattr(obj, "__qualname__", None)
    return isinstance(name, str) and vars(module).get(name) is obj


def _of_numpy_random() -> dict[type, Callable[[Any], Any]]:
    """Return how random generators are reduced: numpy's own way differs between its major versions."""
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
    """Reduce a module that goes by value to the worker's module of that name, with all that is in this one.

    `__main__` is only named: not everything in a script is for a worker, or can be pickled.
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
