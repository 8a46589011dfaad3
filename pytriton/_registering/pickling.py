"""Make the payload of a callable: code that the worker can import is named, other code is sent.

The payload is a header (`pytriton.ipc.payload`) and cloudpickle's bytes, pickle protocol 5: every
Python from 3.9 on reads it. Code objects are bytes of one minor version of Python; the header says
whether any travel.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle

from pytriton._registering.function_lines import lines_of_all
from pytriton._registering.project_sources import imported_by, sources_of
from pytriton._registering.unpicklable import describe, find_offender
from pytriton._registering.worker_imports import WorkerImports
from pytriton.exceptions import PicklingError
from pytriton.ipc.control import MAX_FRAME_BYTES
from pytriton.ipc.errors import sendable
from pytriton.ipc.payload import Header, pack

_PROTOCOL = 5
#: Where the name of the file stands among the arguments of `types.CodeType`, in every Python from 3.8 on.
_FILE_NAME = 10
#: cloudpickle knows one set of modules to pickle by value, the process's.
_one_at_a_time = threading.Lock()


def pack_callable(target: Callable[..., Any], imports: WorkerImports, model_name: str) -> bytes:
    """Return the payload of a callable.

    Args:
        target: what to send: any callable
        imports: what the worker can import
        model_name: for errors

    Raises:
        PicklingError: something that the callable refers to cannot be pickled, or it is too large
    """
    buffer = io.BytesIO()
    with _one_at_a_time, _registering_by_value(imports) as (see, modules):
        pickler = _Pickler(buffer, see)
        try:
            pickler.dump(target)
        except Exception as error:  # whatever a user's __reduce__ raises
            offender, reason = find_offender(target, lambda part: _try_to_pickle(part, see))
            raise PicklingError.naming(
                describe(target), offender, str(reason or error), model_name=model_name
            ) from error
    if buffer.tell() > MAX_FRAME_BYTES - 4096:
        raise PicklingError(
            f"Cannot send {describe(target)}: its pickle has {buffer.tell():,} bytes and the "
            f"daemon takes at most {MAX_FRAME_BYTES:,}. Register a class or function that loads "
            "the model in the worker, with factory=True.",
            model_name=model_name,
        )
    version = (sys.version_info[0], sys.version_info[1])
    header = Header(
        version,
        not pickler.code_travels,
        folders=sorted(set(map(_folder, modules.sent)) - {""}),
        sources=sources_of({*modules.named, *pickler.imported}, imports.search_path, model_name),
        lines=lines_of_all(pickler.functions),
    )
    return pack(header, buffer.getvalue())


def _folder(module: ModuleType) -> str:
    """Return the folder that has to be on the search path for a module to be found; "" if there is none."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None:
        return ""
    parts = module.__name__.count(".") + (os.path.basename(file) == "__init__.py")
    return sendable(str(Path(os.path.abspath(file)).parents[parts]))


class _Modules(NamedTuple):
    """The modules that a pickler has met.

    Attributes:
        sent: their code travels
        named: the names of those that the worker imports
    """

    sent: list[ModuleType]
    named: set[str]


@contextmanager
def _registering_by_value(
    imports: WorkerImports,
) -> Iterator[tuple[Callable[[ModuleType], None], _Modules]]:
    """Yield a function that has a module pickled by value if the worker cannot import it, and what it has seen."""
    ours = _Modules([], set())

    def see(module: ModuleType) -> None:
        name = module.__name__
        if sys.modules.get(name) is not module:
            return  # cloudpickle itself sends what is no longer in sys.modules
        if imports.finds(module):
            ours.named.add(name)
            return
        if name not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            ours.sent.append(module)

    try:
        yield see, ours
    finally:
        for module in ours.sent:
            cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """A pickler that decides for each module, when it meets something of it, whether code goes by value.

    Attributes:
        code_travels: a code object was met, so that only this version of Python can read the
            pickle.
        imported: what code that travels may import while it runs: names of modules
        functions: those whose code travels
    """

    def __init__(self, file: Any, see: Callable[[ModuleType], None]) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self._see = see
        self.code_travels = False
        self.imported: set[str] = set()
        self.functions: list[FunctionType] = []
        #: Functions by the id of their code, which comes after them.
        self._met: dict[int, FunctionType] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for every object but the plainest (documented in `pickle`)."""
        if isinstance(obj, CodeType):
            self.code_travels = True
            self.imported.update(imported_by(obj))
            if id(obj) in self._met:
                self.functions.append(self._met.pop(id(obj)))
            return self._reduce_code(obj)
        elif isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):
            # cloudpickle would send what is in it, as it is now, without its name.
            raise TypeError("cannot pickle an open file: open it in the worker")
        elif isinstance(obj, ModuleType):
            self._see(obj)
        elif isinstance(obj, (FunctionType, type)):
            module = sys.modules.get(_module_name(obj))
            if isinstance(module, ModuleType):
                self._see(module)
            if isinstance(obj, FunctionType):
                self._met[id(obj.__code__)] = obj
        return super().reducer_override(obj)

    def _reduce_code(self, code: CodeType) -> Any:
        """Reduce code as cloudpickle does, and keep the name of its file.

        From 3.1.3 on, cloudpickle writes "<dynamic-code>" instead: tracebacks would show neither files nor source.
        """
        make, arguments = self.dispatch_table[CodeType](code)
        if make is CodeType:
            after = _FILE_NAME + 1
            arguments = (*arguments[:_FILE_NAME], code.co_filename, *arguments[after:])
        return make, arguments


def _module_name(thing: Any) -> str:
    name = getattr(thing, "__module__", None)
    return name if isinstance(name, str) else ""


class _Nowhere:
    """A file for a pickle that nobody will read."""

    def write(self, data: Any) -> int:
        return len(data)


def _try_to_pickle(thing: Any, see: Callable[[ModuleType], None]) -> Exception | None:
    try:
        _Pickler(_Nowhere(), see).dump(thing)
    except Exception as error:  # whatever a user's __reduce__ raises
        return error
    return None
