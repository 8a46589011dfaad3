"""Creates the payload of a callable: code that the worker can import is pickled by reference, other code by value.

The payload is a header (`pytriton._protocol.payload`) and cloudpickle's bytes, pickle protocol 5, which every
Python since 3.9 can read. Code objects are specific to one minor version of Python; the header says
whether there are any.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle

from pytriton._protocol.control import MAX_FRAME_BYTES
from pytriton._protocol.errors import sendable
from pytriton._protocol.payload import Header, pack
from pytriton._register.definitions import definitions_of
from pytriton._register.pickler import Pickler, describe, find_offender
from pytriton._register.project_sources import imported_by, sources_of
from pytriton._register.target import lines_of_all
from pytriton._register.worker_imports import WorkerImports
from pytriton.exceptions import PicklingError

#: cloudpickle has one process-wide set of modules to pickle by value.
_one_at_a_time = threading.Lock()


def pack_callable(
    target: Callable[..., Any], imports: WorkerImports, model_name: str, *, is_check: bool = False
) -> bytes:
    """Return the payload of a callable.

    Args:
        target: the callable to send
        imports: the modules that the worker can import
        model_name: for errors
        is_check: the callable is a check of the served callable. Its functions have their own globals, so that they do
            not replace those served.

    Raises:
        PicklingError: an object that the callable refers to cannot be pickled, or the payload is too large
    """
    buffer = io.BytesIO()
    with _one_at_a_time, _registering_by_value(imports) as (see, modules):
        pickler = Pickler(buffer, see, in_modules=not is_check)
        try:
            pickler.dump(target)
            if pickler.defined and not is_check:
                pickler.dump(pickler.defined)
        except Exception as error:  # anything that a user's __reduce__ raises
            offender, reason = find_offender(target, lambda part: _try_to_pickle(part, see))
            raise PicklingError.naming(
                describe(target), offender, str(reason or error), model_name=model_name
            ) from error
        folders = sorted(set(map(_folder, modules.sent.values())) - {""})
        imported = (name for code in pickler.codes for name in imported_by(code))
        named = {*modules.named, *imported}
        in_memory = {"__main__": sys.modules["__main__"], **modules.sent}
        defined = [] if is_check else definitions_of(in_memory.values(), see)
        sources = sources_of(
            named, imports.search_path, model_name, further=modules.named.difference(named)
        )
    version = (sys.version_info[0], sys.version_info[1])
    header = Header(
        version,
        by_reference=not pickler.codes,
        folders=folders,
        sources=sources,
        lines=lines_of_all(pickler.functions),
        modules=defined,
    )
    payload = pack(header, buffer.getvalue())
    if len(payload) > MAX_FRAME_BYTES:
        raise PicklingError(
            f"Cannot send {describe(target)}: it has {len(payload):,} bytes and the "
            f"daemon accepts at most {MAX_FRAME_BYTES:,}. Register a class or function that loads "
            "the model in the worker, with factory=True.",
            model_name=model_name,
        )
    return payload


def _folder(module: ModuleType) -> str:
    """Return the folder that must be on the search path to find a module; "" if there is none."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None:
        return ""
    parts = module.__name__.count(".") + (os.path.basename(file) == "__init__.py")
    return sendable(str(Path(os.path.abspath(file)).parents[parts]))


class _Modules(NamedTuple):
    """The modules that a pickler has met, by name.

    Attributes:
        sent: modules pickled by value
        named: names of modules that the worker imports
    """

    sent: dict[str, ModuleType]
    named: set[str]


@contextmanager
def _registering_by_value(
    imports: WorkerImports,
) -> Iterator[tuple[Callable[[ModuleType], bool], _Modules]]:
    """Yield a function that marks modules for pickling by value if the worker cannot import them, and its record.

    The function returns whether the worker can import the module.
    """
    ours = _Modules({}, set())
    registered = []

    def see(module: ModuleType) -> bool:
        name = module.__name__
        if sys.modules.get(name) is not module:
            return False  # cloudpickle itself pickles modules no longer in sys.modules by value
        if imports.finds(module):
            ours.named.add(name)
            return True
        if name not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
        ours.sent[name] = module
        return False

    try:
        yield see, ours
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


class _Nowhere:
    """A file that discards a pickle."""

    def write(self, data: Any) -> int:
        return len(data)


def _try_to_pickle(thing: Any, see: Callable[[ModuleType], bool]) -> Exception | None:
    try:
        Pickler(_Nowhere(), see).dump(thing)
    except Exception as error:  # anything that a user's __reduce__ raises
        return error
    return None
