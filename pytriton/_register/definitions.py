"""The definitions of modules that the worker cannot import, for ordinary pickles that refer to them.

A pickled pipeline refers to `__main__.MyTransformer`, a process pool to `__main__.square`. The callable itself need not
refer to either. So every function and class of such a module is pickled separately, and loaded in the worker when it is
looked up. Of the module's other values, those used by such code are sent if they are small and not secret; everything
that the callable uses is sent with the callable.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from pytriton._protocol.env_variables import looks_secret
from pytriton._protocol.errors import sendable
from pytriton._protocol.payload import Definition, MemoryModule, memory_module
from pytriton._register.pickler import Named, Pickler, is_found_by_name, module_of_globals

#: Maximum size in bytes of one definition, and of all definitions of a registration.
MAX_DEFINITION_BYTES = 256 << 10
MAX_BYTES = 2 << 20
_LARGE = f"over {MAX_DEFINITION_BYTES >> 10} KiB, or {MAX_BYTES >> 20} MiB with all others"


class _Refused(Exception):
    """A definition is not sent; the text says why."""


def definitions_of(
    modules: Iterable[ModuleType], see: Callable[[ModuleType], bool]
) -> list[MemoryModule]:
    """Return modules with their functions and classes, and the small values that these use.

    Args:
        modules: modules that the worker cannot import
        see: as for `Pickler`
    """
    left = MAX_BYTES
    found = []
    for module in modules:
        definitions = list(_Definitions(module, see, left).all())
        left -= sum(len(one.pickled) for one in definitions)
        found.append(
            MemoryModule(
                module.__name__,
                sendable(getattr(module, "__file__", None) or ""),
                getattr(module, "__package__", None) or "",
                definitions,
            )
        )
    return found


class _Definitions:
    """Pickles the definitions of one module, each separately."""

    def __init__(self, module: ModuleType, see: Callable[[ModuleType], bool], left: int) -> None:
        self._module = module
        self._see = see
        self._left = left

    def all(self) -> Iterable[Definition]:
        """Yield every function and class of the module, and every global that their code uses."""
        names = deque(
            name
            for name, value in list(vars(self._module).items())
            if _is_defined_in(self._module, value) and value.__qualname__ == name
        )
        seen = set(names)
        while names:
            definition = self._definition(names.popleft())
            yield definition
            fresh = [name for name in definition.uses if name not in seen]
            seen.update(fresh)
            names.extend(fresh)

    def _definition(self, name: str) -> Definition:
        value = vars(self._module)[name]
        buffer = _Bounded(min(MAX_DEFINITION_BYTES, self._left))
        pickler = _DefinitionPickler(buffer, self._see, self._module, value)
        try:
            if not isinstance(value, (FunctionType, BuiltinFunctionType, type, ModuleType)):
                _refuse_secret(name, value)
            pickler.dump(value)
        except Exception as error:  # anything that a user's __reduce__ raises
            why = str(error) if isinstance(error, _Refused) else f"{type(error).__name__}: {error}"
            return Definition(name, missing=sendable(why[:300]))
        self._left -= buffer.tell()
        return Definition(name, buffer.getvalue(), sorted(pickler.uses))


class _DefinitionPickler(Pickler):
    """Pickles one definition. Refers to others in its module by name, and leaves functions' globals to be looked up.

    Attributes:
        uses: the globals of the module that its code reads
    """

    def __init__(
        self, file: Any, see: Callable[[ModuleType], bool], module: ModuleType, root: Any
    ) -> None:
        super().__init__(file, see)
        self._module = module
        self._root = root
        self.uses: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        """Reduce an object. pickle calls this for every object except those of basic types."""
        if isinstance(obj, (FunctionType, type)):
            if obj is not self._root and _is_defined_in(self._module, obj):
                return getattr, (Named(self._module.__name__), obj.__qualname__)
            reduced = super().reducer_override(obj)
            if isinstance(obj, FunctionType) and module_of_globals(obj) is self._module:
                return self._without_globals(reduced)
            return reduced
        if isinstance(obj, ModuleType) and not self._see(obj):
            return memory_module, (obj.__name__,)
        size = getattr(
            obj, "nbytes", 0
        )  # arrays and tensors, which may copy all their data to be pickled
        if isinstance(size, int) and size > MAX_DEFINITION_BYTES:
            raise _Refused(_LARGE)
        return super().reducer_override(obj)

    def _without_globals(self, reduced: Any) -> Any:
        """Remove the values of globals from a function's state as cloudpickle creates it, and record their names."""
        if not isinstance(reduced, tuple):
            return reduced  # by reference
        make, arguments, (attributes, slots), *more = reduced
        self.uses.update(slots["__globals__"])
        return make, arguments, (attributes, {**slots, "__globals__": {}}), *more


def _is_defined_in(module: ModuleType, value: Any) -> bool:
    """Return True if a function or class is defined in a module under its own name."""
    is_either = isinstance(value, (FunctionType, type))
    own = is_either and getattr(value, "__module__", None) == module.__name__
    return own and is_found_by_name(module, value)


def _refuse_secret(name: str, value: Any) -> None:
    """Refuse a value that looks like a secret: registrations are stored on disk, and the callable did not request it."""
    if looks_secret(name, value if isinstance(value, str) else ""):
        raise _Refused("it looks like a secret, and the callable does not use it")


class _Bounded(io.BytesIO):
    """An in-memory file for a pickle, with a maximum size."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any) -> int:
        """Write, or refuse if the file would become too large."""
        if self.tell() + memoryview(data).nbytes > self._most:
            raise _Refused(_LARGE)
        return super().write(data)
