"""Determines which modules of this process a worker can import, so that they are pickled by reference."""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from pytriton._protocol.closeable import Closeable
from pytriton._protocol.messages import WorkerEnvironment
from pytriton._register.environments import check_version
from pytriton.exceptions import PyTritonBadParameterError

#: Timeout of an answer, which may include the import of a large package.
_ANSWER_S = 60.0
#: Always available: the daemon gives every worker its own pytriton, and boot.py refuses to run without the rest.
_IN_EVERY_WORKER = frozenset({"pytriton", "cloudpickle", "msgspec", "numpy", "zmq"})


#: The last environment queried, and the modules that its interpreter did not find.
_asked: tuple[WorkerEnvironment, set[str]] | None = None


class WorkerImports:
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

    def __enter__(self) -> WorkerImports:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
            self._known[name] = self._look(name, module)
        return self._known[name]

    def _look(self, name: str, module: ModuleType) -> bool:
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
    global _asked
    if _asked is None or _asked[0] != world:
        _asked = (world, set())
    return _asked[1]


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
            raise self._silent() from None
        readable, _, _ = select.select([self._process.stdout], [], [], _ANSWER_S)
        line = self._process.stdout.readline() if readable else b""
        try:
            return json.loads(line)
        except ValueError:
            raise self._silent() from None

    def _silent(self) -> PyTritonBadParameterError:
        check_version(self._python)
        return PyTritonBadParameterError(
            f"python={self._python!r} does not work as a worker's interpreter: it did not "
            "report which modules it can import."
        )
