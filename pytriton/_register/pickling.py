"""Make the payload of a callable: code that the worker can import is named, other code is sent.

The payload is a header (`pytriton._protocol.payload`) and cloudpickle's bytes, pickle protocol 5: every
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
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle

from pytriton._protocol.control import MAX_FRAME_BYTES
from pytriton._protocol.errors import sendable
from pytriton._protocol.payload import Header, pack
from pytriton._register.definitions import definitions_of
from pytriton._register.function_lines import lines_of_all
from pytriton._register.pickle_diagnosis import describe, find_offender
from pytriton._register.pickler import Pickler
from pytriton._register.project_sources import imported_by, sources_of
from pytriton._register.worker_imports import WorkerImports
from pytriton.exceptions import PicklingError

#: cloudpickle knows one set of modules to pickle by value, the process's.
_one_at_a_time = threading.Lock()


def pack_callable(
    target: Callable[..., Any], imports: WorkerImports, model_name: str, *, is_check: bool = False
) -> bytes:
    """Return the payload of a callable.

    Args:
        target: what to send: any callable
        imports: what the worker can import
        model_name: for errors
        is_check: it is called with what the worker serves. Its functions have globals of their own, so that they do
            not take the places of those served.

    Raises:
        PicklingError: something that the callable refers to cannot be pickled, or it is too large
    """
    buffer = io.BytesIO()
    with _one_at_a_time, _registering_by_value(imports) as (see, modules):
        pickler = Pickler(buffer, see, in_modules=not is_check)
        try:
            pickler.dump(target)
            if pickler.defined and not is_check:
                pickler.dump(pickler.defined)
        except Exception as error:  # whatever a user's __reduce__ raises
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
            f"daemon takes at most {MAX_FRAME_BYTES:,}. Register a class or function that loads "
            "the model in the worker, with factory=True.",
            model_name=model_name,
        )
    return payload


def _folder(module: ModuleType) -> str:
    """Return the folder that has to be on the search path for a module to be found; "" if there is none."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None:
        return ""
    parts = module.__name__.count(".") + (os.path.basename(file) == "__init__.py")
    return sendable(str(Path(os.path.abspath(file)).parents[parts]))


class _Modules(NamedTuple):
    """The modules that a pickler has met, by name.

    Attributes:
        sent: their code travels
        named: the names of those that the worker imports
    """

    sent: dict[str, ModuleType]
    named: set[str]


@contextmanager
def _registering_by_value(
    imports: WorkerImports,
) -> Iterator[tuple[Callable[[ModuleType], bool], _Modules]]:
    """Yield a function that has a module pickled by value if the worker cannot import it, and what it has seen.

    The function returns whether the worker imports the module.
    """
    ours = _Modules({}, set())
    registered = []

    def see(module: ModuleType) -> bool:
        name = module.__name__
        if sys.modules.get(name) is not module:
            return False  # cloudpickle itself sends what is no longer in sys.modules
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
    """A file for a pickle that nobody will read."""

    def write(self, data: Any) -> int:
        return len(data)


def _try_to_pickle(thing: Any, see: Callable[[ModuleType], bool]) -> Exception | None:
    try:
        Pickler(_Nowhere(), see).dump(thing)
    except Exception as error:  # whatever a user's __reduce__ raises
        return error
    return None
