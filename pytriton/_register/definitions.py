"""The definitions of modules that the worker cannot import: what an ordinary pickle may name there.

A pickled pipeline names `__main__.MyTransformer`, a process pool names `__main__.square`. The callable itself need not
refer to either. So every function and class of such a module is pickled on its own, and loaded in the worker when it is
looked up. Of the module's other values, those that such code uses travel if they are small and no secrets; all
that the callable uses travels with the callable, whatever it is.
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

#: Bytes of one definition, and of all of a registration, at most.
MAX_DEFINITION_BYTES = 256 << 10
MAX_BYTES = 2 << 20
_LARGE = f"over {MAX_DEFINITION_BYTES >> 10} KiB, or {MAX_BYTES >> 20} MiB with all others"


class _Refused(Exception):
    """Something is not sent along for others to look up; the text says why."""


def definitions_of(
    modules: Iterable[ModuleType], see: Callable[[ModuleType], bool]
) -> list[MemoryModule]:
    """Return modules with their functions and classes, and the small values that these use.

    Args:
        modules: those that the worker cannot import
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
    """Pickles the definitions of one module, each by itself."""

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
        except Exception as error:  # whatever a user's __reduce__ raises
            why = str(error) if isinstance(error, _Refused) else f"{type(error).__name__}: {error}"
            return Definition(name, missing=sendable(why[:300]))
        self._left -= buffer.tell()
        return Definition(name, buffer.getvalue(), sorted(pickler.uses))


class _DefinitionPickler(Pickler):
    """Pickles one definition: others of its module are named, and functions leave their globals to be looked up.

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
        """Called by pickle for every object but the plainest."""
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
        )  # arrays and tensors, which may copy all they have to be pickled
        if isinstance(size, int) and size > MAX_DEFINITION_BYTES:
            raise _Refused(_LARGE)
        return super().reducer_override(obj)

    def _without_globals(self, reduced: Any) -> Any:
        """Take the values of globals out of a function's state as cloudpickle makes it, and note their names."""
        if not isinstance(reduced, tuple):
            return reduced  # by name
        make, arguments, (attributes, slots), *more = reduced
        self.uses.update(slots["__globals__"])
        return make, arguments, (attributes, {**slots, "__globals__": {}}), *more


def _is_defined_in(module: ModuleType, value: Any) -> bool:
    """Return whether a function or class is a module's own, under its own name."""
    is_either = isinstance(value, (FunctionType, type))
    own = is_either and getattr(value, "__module__", None) == module.__name__
    return own and is_found_by_name(module, value)


def _refuse_secret(name: str, value: Any) -> None:
    """Refuse a value that looks like a secret: registrations lie on disk, and nobody has asked for this one."""
    if looks_secret(name, value if isinstance(value, str) else ""):
        raise _Refused("it looks like a secret, and the callable does not use it")


class _Bounded(io.BytesIO):
    """A file for a pickle that may not grow large."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any) -> int:
        """Write; refuses what is too much."""
        if self.tell() + memoryview(data).nbytes > self._most:
            raise _Refused(_LARGE)
        return super().write(data)
