"""Recreates in memory the registrant's modules for which the worker has no file: `__main__`, and others pickled by
value.

Pickles refer to these modules by name: a pipeline that the script trained and saved, the tasks of a process pool,
objects that the callable itself pickles. So the worker creates modules of these names. Loading the callable adds the
definitions it uses; every other definition is loaded on first access.

A process that multiprocessing spawns (spawn, forkserver; also loky) imports the main module of its parent. The
worker's main module recreates all of these modules there::

    worker                                           its child
    __main__.__spec__.name  ──▶ writes the payload   python -c "from multiprocessing.spawn import ..."
                                into a memfd         __mp_main__ = pytriton.worker.spawned_main
                                                       └─ restore() reads the memfd
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import pickle
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import msgspec

from pytriton._protocol.payload import (
    Definition,
    Header,
    MemoryModule,
    memory_module,
    memory_modules,
    unpack,
)
from pytriton.worker import project_modules
from pytriton.worker.fault_reports import client_text, report

#: Environment variable with the path of a file that contains an `_Inheritance`. Set when a child first needs it.
VARIABLE = "PYTRITON_WORKER_MODULES"
#: The module that a child imports as its main module.
_SPAWNED_MAIN = "pytriton.worker.spawned_main"


class _Inheritance(msgspec.Struct):
    """The data with which a child process recreates the worker's modules. `folder` is a Triton Python model's version
    folder.
    """

    payload: bytes
    folder: str = ""


_definitions: dict[str, _ModuleDefinitions] = {}


def establish(payload: bytes, folder: str = "") -> None:
    """Create the registrant's modules in this worker. Must be called before the payload is loaded.

    Args:
        payload: the callable's payload
        folder: the version folder of a Triton Python model that is served from a folder, else ""
    """
    header, _ = unpack(payload)
    for one in _with_main(header.modules):
        module = _create_module(one, header)
        if one.name == "__main__":
            module.__spec__ = _MainSpec(_Inheritance(payload, folder), one.package)
            sys.modules["__main__"] = module
    sys.meta_path.insert(0, _Finder())


def add_definitions(defined: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the callable's functions and classes to the modules where pickles look them up.

    Args:
        defined: module -> name -> the object that had this name when the callable was pickled
    """
    for name, found in defined.items():
        if name in _definitions:
            vars(memory_module(name)).update(found)


def restore() -> Any:
    """Recreate a worker's modules in a child process that the worker has spawned.

    Returns:
        The `__getattr__` of the main module.

    Raises:
        RuntimeError: the worker has exited.
    """
    try:
        data = Path(os.environ[VARIABLE]).read_bytes()
    except (KeyError, OSError) as error:
        raise RuntimeError(
            f"the worker that started this process has exited ({client_text(error)}), so its modules cannot be imported"
        ) from error
    inheritance = msgspec.msgpack.decode(data, type=_Inheritance)
    header, _ = unpack(inheritance.payload)
    project_modules.use(header.sources)
    project_modules.show(header.lines)
    for one in _with_main(header.modules):
        if one.name == "__main__":  # multiprocessing creates the module itself
            _definitions["__main__"] = _ModuleDefinitions(one, header, inheritance.payload)
        else:
            _create_module(one, header, inheritance.payload)
    sys.meta_path.insert(0, _Finder())
    if inheritance.folder:
        from pytriton import pb_utils

        pb_utils.install()
        make_package(Path(inheritance.folder))
    return _definitions["__main__"].get


def make_package(folder: Path) -> None:
    """Turn a model's version folder into a package named after the version, whose modules can import each other."""
    package = types.ModuleType(folder.name)
    package.__path__ = [str(folder)]
    sys.modules[folder.name] = package


def _with_main(modules: Sequence[MemoryModule]) -> list[MemoryModule]:
    named = {one.name: one for one in modules}
    return list({"__main__": MemoryModule("__main__"), **named}.values())


def _create_module(
    described: MemoryModule, header: Header, payload: bytes = b""
) -> types.ModuleType:
    module = _Module(described.name)
    definitions = _ModuleDefinitions(described, header, payload)
    own = {"__package__": described.package, "__getattr__": definitions.get}
    vars(module).update(own, **({"__file__": described.file} if described.file else {}))
    _definitions[described.name] = definitions
    memory_modules[described.name] = module
    return module


class _Finder:
    """Import finder for the modules that exist only in memory, and for packages that contain only such modules.

    A module is added to `sys.modules` only when something imports it. Until then, cloudpickle pickles its objects by
    value, so that processes without these modules, such as loky's, can unpickle them.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        is_package = any(one.startswith(f"{name}.") for one in memory_modules)
        if name in memory_modules:
            return ModuleSpec(name, _MemoryLoader(), is_package=is_package)  # type: ignore[arg-type]
        if is_package and PathFinder.find_spec(name, path) is None:
            return ModuleSpec(name, None, is_package=True)
        return None


class _MemoryLoader:
    """Loader for a module that already exists."""

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return memory_modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Module(types.ModuleType):
    """A module of the registrant. Its `repr` omits the spec, which for `__main__` is meant only for child processes."""

    def __repr__(self) -> str:
        file = vars(self).get("__file__")
        return f"<module {vars(self).get('__name__')!r}{f' from {file!r}' if file else ''}>"


class _ModuleDefinitions:
    """The definitions of one module, each loaded on first access."""

    def __init__(self, module: MemoryModule, header: Header, payload: bytes = b"") -> None:
        """Create the definitions without loading them.

        Args:
            module: the module and its definitions
            header: the payload's header
            payload: the payload, loaded when a definition needs it; b"" if it is loaded already
        """
        self._module = module.name
        self._file = module.file
        self._by_name = {one.name: one for one in module.definitions}
        self._version = header.python_version
        self._payload = payload
        self._lock = threading.RLock()
        self._loading: set[str] = set()
        self._waiting: list[str] = []

    def get(self, name: str) -> Any:
        """Return a global of the module. Serves as the module's `__getattr__`.

        Raises:
            AttributeError: the module has no such global.
            ImportError: the global was not sent to the worker, or was pickled by another Python version.
            Exception: anything that loading the global raises.
        """
        with self._lock:
            self._load(name)
            while self._waiting and not self._loading:
                used = self._waiting.pop()
                try:
                    self._load(used)
                except Exception as error:  # the code that uses it may never run
                    report(
                        f"{self._module}.{used}, which {self._module}.{name} uses, could not be loaded: {client_text(error)}"
                    )
            return self._namespace[name]

    @property
    def _namespace(self) -> dict[str, Any]:
        return vars(memory_module(self._module))

    def _load(self, name: str) -> None:
        if name in self._namespace or name in self._loading:
            return
        definition = self._by_name.get(name)
        if definition is None or definition.missing:
            self._load_payload()
            if name in self._namespace:
                return
        if definition is None:
            raise AttributeError(f"module {self._module!r} has no attribute {name!r}{self._origin}")
        self._check(definition)
        self._loading.add(name)
        try:
            value = unpickle(definition.pickled)
        finally:
            self._loading.discard(name)
        self._namespace.setdefault(name, value)
        self._waiting.extend(definition.uses)

    def _check(self, definition: Definition) -> None:
        name = f"{self._module}.{definition.name}{self._origin}"
        if definition.missing:
            raise ImportError(
                f"{name} was not sent to the worker ({definition.missing}). Move it to a module next to the script; "
                "workers import that module."
            )
        if tuple(self._version) != sys.version_info[:2]:
            major, minor = self._version
            raise ImportError(
                f"{name} was sent as Python {major}.{minor} code, but this is Python {sys.version_info[0]}."
                f"{sys.version_info[1]}. Put it into a module that both can import."
            )

    def _load_payload(self) -> None:
        """Load the callable, and with it all definitions that it uses."""
        payload, self._payload = self._payload, b""
        if payload:
            load_payload(payload)

    @property
    def _origin(self) -> str:
        return f" (of {self._file}, as registered)" if self._file else ""


def load_payload(payload: bytes) -> Any:
    """Unpickle a payload. Add its functions and classes to the modules where pickles look them up."""
    _, pickled = unpack(payload)
    file = io.BytesIO(payload)  # shares the memory
    file.seek(len(payload) - len(pickled))
    unpickler = Unpickler(file)
    loaded = unpickler.load()
    if file.tell() < len(payload):
        add_definitions(unpickler.load())
    return loaded


class _MainSpec(ModuleSpec):
    """The spec of a worker's main module. multiprocessing reads its name to import the module in a child."""

    def __init__(self, inheritance: _Inheritance, package: str) -> None:
        self._inheritance = inheritance
        self._package = package
        self._file: int | None = None
        super().__init__("__main__", None)

    @property
    def name(self) -> str:
        """Return the name of the module that a child imports. The first call writes the data that the child will read."""
        if self._file is None:
            data = msgspec.msgpack.encode(self._inheritance)
            self._file = os.memfd_create("pytriton-modules")
            with open(self._file, "wb", closefd=False) as file:
                file.write(data)
            os.environ[VARIABLE] = f"/proc/{os.getpid()}/fd/{self._file}"
        return _SPAWNED_MAIN

    @name.setter
    def name(self, name: str) -> None:
        pass

    @property
    def parent(self) -> str:
        """Return the registrant's package, for relative imports."""
        return self._package


# ── unpickling objects from a registrant with another major version of numpy ─────────────────────────
#
# A pickled array refers to functions in `numpy._core` (numpy 2) or `numpy.core` (numpy 1).

#: The package's name in numpy 2 and in numpy 1.
_CORES = ("numpy._core", "numpy.core")
#: The function with which cloudpickle refers to a module that a pickled function uses.
_SUBIMPORT = ("cloudpickle.cloudpickle", "subimport")


class Unpickler(pickle.Unpickler):
    """An unpickler that translates the names of numpy's internals to those of the installed version.

    Raises:
        pickle.UnpicklingError: the object does not exist in this numpy.
    """

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return the object to which a pickle refers by module and name."""
        if (module_name, global_name) == _SUBIMPORT:
            return _import_module
        if module_name.partition(".")[0] != "numpy":
            return super().find_class(module_name, global_name)
        name = _own_name(module_name)
        try:
            return super().find_class(name, global_name)
        except (ImportError, AttributeError):
            return _attribute(f"{name}.{global_name}")


def unpickle(pickled: bytes) -> Any:
    """Unpickle an object that was pickled with any major version of numpy."""
    return Unpickler(io.BytesIO(pickled)).load()


def _import_module(name: str) -> Any:
    if name.partition(".")[0] != "numpy":
        return importlib.import_module(name)
    name = _own_name(name)
    try:
        return importlib.import_module(name)
    except ImportError:
        return _attribute(name)


def _own_name(module: str) -> str:
    """Translate the name of a numpy module to its name in the installed version."""
    ours, theirs = _CORES if _is_numpy_2() else reversed(_CORES)
    is_theirs = module == theirs or module.startswith(f"{theirs}.")
    return ours + module[len(theirs) :] if is_theirs else module


@functools.lru_cache(maxsize=1)
def _is_numpy_2() -> bool:
    numpy = importlib.import_module("numpy")
    return int(numpy.__version__.partition(".")[0]) >= 2


def _attribute(path: str) -> Any:
    """Return an object of numpy, given its dotted path. Unlike an import, this also finds `numpy.rec` in numpy 1."""
    numpy = importlib.import_module("numpy")
    found: Any = numpy
    try:
        for part in path.split(".")[1:]:
            found = getattr(found, part)
    except AttributeError:
        raise pickle.UnpicklingError(
            f"the callable contains an object that needs {path}, which is missing from numpy {numpy.__version__} "
            "in the worker's environment. Install the registrant's version of numpy there, or create the object in the "
            "worker, with factory=True."
        ) from None
    return found
