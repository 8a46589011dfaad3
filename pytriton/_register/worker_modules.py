"""The modules of this process: which ones a worker can import, and the sources sent with a registration.

A worker imports what it finds in its environment, so that code there is pickled by reference.

Files change: the project evolves, a folder is removed, another machine has another checkout. Workers started
later, and `rollback`, must run the code that was registered. So the files of the registrant's own modules are sent; a
worker imports them (`pytriton.worker.project_modules`). Installed packages are not included.
"""

from __future__ import annotations

import ast
import dis
import functools
import json
import os
import select
import subprocess
import sys
import sysconfig
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pytriton._protocol.closeable import Closeable
from pytriton._protocol.messages import WorkerEnvironment
from pytriton._protocol.payload import Source
from pytriton._register.environments import check_version
from pytriton.exceptions import PyTritonBadParameterError

#: Timeout of an answer, which may include the import of a large package.
_ANSWER_TIMEOUT_S = 60.0
#: Always available: the daemon gives every worker its own pytriton, and boot.py refuses to run without the rest.
_IN_EVERY_WORKER = frozenset({"pytriton", "cloudpickle", "msgspec", "numpy", "zmq"})
#: Maximum per callable. A larger project is most likely a framework under development.
MAX_BYTES = 2 << 20
MAX_FILES = 500

#: The last environment queried, and the modules that its interpreter did not find.
_last_query: tuple[WorkerEnvironment, set[str]] | None = None


class WorkerModules(Closeable):
    """Determines whether a worker in an environment finds the same modules that this process has.

    Most answers come from the search path alone. For modules not found there (from an import hook of
    an editable install, or created at run time), the interpreter itself is started once and
    queried. Modules that this process's interpreter did not find are not queried again in the
    same environment: they are sent, which works even if they have been installed since.
    """

    def __init__(self, world: WorkerEnvironment, *, own_interpreter: bool) -> None:
        self._world = world
        self._own_interpreter = own_interpreter
        self._known: dict[str, bool] = {}
        self._probe: Probe | None = None

    def close(self) -> None:
        """End the probe, if one was started."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    @property
    def search_path(self) -> list[str]:
        """Return the folders in which the worker looks for modules; [] if only its interpreter knows."""
        return self._world.sys_path

    def finds(self, module: ModuleType) -> bool:
        """Return True if the worker imports, under the name of `module`, the same module.

        A module is the same if it comes from the same file. With another interpreter, installed modules
        (site-packages, standard library) are matched by name: only that environment's own build can work
        there.
        """
        name = module.__name__
        if name not in self._known:
            self._known[name] = self._finds(name, module)
        return self._known[name]

    def _finds(self, name: str, module: ModuleType) -> bool:
        if name.partition(".")[0] in ("__main__", "__mp_main__"):
            return False
        if in_every_worker(name) or _is_built_in(name):
            return True
        file = getattr(module, "__file__", None)
        if not self._own_interpreter and file is not None and is_installed(file):
            return True
        if self._world.sys_path:
            spec = find_spec(name, self._world.sys_path)
            if spec is not None and _is_same(spec.origin if spec.has_location else None, file):
                return True
        # Another interpreter may lack a module that cannot be sent, which the user then installs there.
        not_found = _not_found_in(self._world) if self._own_interpreter else set[str]()
        if name in not_found:
            return False
        if self._probe is None:
            self._probe = Probe(self._world)
        found, their_file = self._probe.look_up(name)
        if not found:
            not_found.add(name)
        return found and _is_same(their_file, file)


def _not_found_in(world: WorkerEnvironment) -> set[str]:
    """Return the modules that an environment's interpreter did not find. Cached for one environment."""
    global _last_query
    if _last_query is None or _last_query[0] != world:
        _last_query = (world, set())
    return _last_query[1]


def find_spec(name: str, search: Sequence[str]) -> ModuleSpec | None:
    """Find a module as an import would, along `search`, without importing it."""
    path: Sequence[str] | None = search
    spec = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        if path is None:
            return None  # the parent is not a package
        spec = PathFinder.find_spec(".".join(parts[:count]), list(path))
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def _is_same(their_file: str | None, file: str | None) -> bool:
    if their_file is None or file is None:
        return their_file is file  # namespace packages have no file
    return os.path.realpath(their_file) == os.path.realpath(file)


def _is_built_in(name: str) -> bool:
    return any(finder.find_spec(name) is not None for finder in (BuiltinImporter, FrozenImporter))


def in_every_worker(name: str) -> bool:
    """Return True if the daemon gives every worker a module, or refuses a worker without it."""
    return name.partition(".")[0] in _IN_EVERY_WORKER


@functools.lru_cache(maxsize=1)
def _installation() -> frozenset[str]:
    """Return this interpreter's own folders. Finding them takes half a millisecond."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return frozenset(sysconfig.get_path(kind) for kind in kinds)


def is_installed(file: str) -> bool:
    """Return True if a module belongs to the standard library or to an installed distribution."""
    folders = {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    folders |= _installation()
    real = os.path.realpath(file)
    return any(real.startswith(os.path.realpath(folder) + os.sep) for folder in folders if folder)


class Probe(Closeable):
    """A short-lived process in a worker's environment that looks modules up. Starts immediately; close it after use.

    Attributes:
        search_path: where that interpreter looks for modules.

    Raises:
        PyTritonBadParameterError: the interpreter does not run, or does not answer.
    """

    def __init__(self, world: WorkerEnvironment) -> None:
        self._python = world.python
        program = Path(__file__).with_name("import_probe.py")
        try:
            self._process = subprocess.Popen(
                [world.python, str(program)],
                cwd=world.cwd,
                env=dict(world.env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,  # `select` must see all unread data
            )
        except OSError as error:
            raise PyTritonBadParameterError(
                f"python={world.python!r} cannot be started: {error}. Choose another Python interpreter."
            ) from error
        try:
            self.search_path: list[str] = self._ask(world.sys_path)
        except BaseException:
            self.close()
            raise

    def look_up(self, module: str) -> tuple[bool, str | None]:
        """Return whether that interpreter finds a module, and the module's file if it has one."""
        found, file = self._ask(module)
        return bool(found), file

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._no_answer() from None
        readable, _, _ = select.select([self._process.stdout], [], [], _ANSWER_TIMEOUT_S)
        line = self._process.stdout.readline() if readable else b""
        try:
            return json.loads(line)
        except ValueError:
            raise self._no_answer() from None

    def _no_answer(self) -> PyTritonBadParameterError:
        check_version(self._python)
        return PyTritonBadParameterError(
            f"python={self._python!r} does not work as a worker's interpreter: it did not "
            "report which modules it can import."
        )


# ── sources ─────────────────────────────────────────────────────────────────────────────────────


def sources_of(
    roots: Iterable[str],
    search: Sequence[str],
    model_name: str,
    *,
    further: Iterable[str] = (),
) -> list[Source]:
    """Return the sources of modules and, recursively, of their imports; nearest first, then by name.

    Args:
        roots: names of modules
        search: where the worker looks for modules that this process has not imported; []: unknown
        model_name: for the warning about too many sources
        further: modules that the callable itself does not use: included as far as there is room
    """
    packages = _folders_of_packages(search)
    found: dict[str, Source] = {}
    is_whole, name = _collect(roots, search, packages, found)
    if not is_whole:
        _warn_of_limit(name, model_name)
    else:
        _collect(further, search, packages, found)
    return list(found.values())


def _collect(
    roots: Iterable[str], search: Sequence[str], packages: Sequence[str], found: dict[str, Source]
) -> tuple[bool, str]:
    """Add sources to `found`; return whether all fit, and the name of the first that did not."""
    waiting = deque(one for root in sorted(set(roots)) for one in _with_parents(root))
    seen = {*waiting, *found}
    size = sum(len(source.text) for source in found.values())
    name = ""
    while waiting:
        name = waiting.popleft()
        if name in found:
            continue
        source = _source(name, search, packages)
        if source is None:
            continue
        size += len(source.text)
        if size > MAX_BYTES or len(found) == MAX_FILES:
            return False, name
        found[name] = source
        for more in _imports_of(source):
            for one in _with_parents(more):
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
    return True, name


def imported_by(code: CodeType) -> Iterator[str]:
    """Yield possible names of modules that code imports at run time, except relative ones."""
    base = ""
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            base = str(one.argval)
            yield base
        elif one.opname == "IMPORT_FROM":
            yield f"{base}.{one.argval}"


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _folders_of_packages(search: Sequence[str]) -> list[str]:
    """Return the folders of installed packages: this interpreter's, the worker's, and those of `pip install --target`."""
    folders = {one for one in (*sys.path, *search) if isinstance(one, str) and one}
    return [os.path.realpath(one) + os.sep for one in folders if _holds_packages(Path(one))]


def _holds_packages(folder: Path) -> bool:
    if folder.name in ("site-packages", "dist-packages"):
        return True
    return (folder / "os.py").exists() or any(folder.glob("*.dist-info"))  # the standard library


def _source(name: str, search: Sequence[str], packages: Sequence[str]) -> Source | None:
    """Return a module's source; None if it is installed, does not exist, or has no Python source file."""
    if in_every_worker(name) or name == "__main__":
        return None
    module = sys.modules.get(name)
    if isinstance(module, ModuleType):
        file = getattr(module, "__file__", None)
    else:
        spec = find_spec(name, search) if search else None
        file = spec.origin if spec is not None and spec.has_location else None
    if not isinstance(file, str) or not file.endswith(".py") or is_installed(file):
        return None
    if os.path.realpath(file).startswith(tuple(packages)):
        return None
    path = os.path.abspath(file)
    try:
        with open(path, "rb") as opened:
            return Source(name, path, opened.read(MAX_BYTES + 1))
    except OSError:
        return None  # in an archive, or removed: the worker finds it, or reports that it cannot


@functools.lru_cache(maxsize=MAX_FILES)
def _imports_of(source: Source) -> list[str]:
    return sorted(set(_imported(source)))


def _imported(source: Source) -> Iterator[str]:
    """Yield possible names of modules that a module imports anywhere in its source."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were shown when it was imported
            tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # written for another Python version
    is_package = os.path.basename(source.file) == "__init__.py"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = source.name.split(".")
            package = package[: len(package) - node.level + is_package] if node.level else []
            base = ".".join([*package, *filter(None, [node.module])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _warn_of_limit(name: str, model_name: str) -> None:
    warnings.warn(
        f"Model {model_name!r}: its modules exceed the limits of a registration ({MAX_FILES} files, "
        f"{MAX_BYTES >> 20} MiB). Workers import {name!r} and the rest from their current files when a worker "
        "starts, even after a rollback. Do not change these files, or install them.",
        stacklevel=first_outside(),
    )


def first_outside() -> int:
    """Return the `stacklevel` of the user's own code."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # pytriton
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(
        package
    ):
        frame = frame.f_back
        level += 1
    return level
