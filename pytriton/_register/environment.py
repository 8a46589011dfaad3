"""The environment of a model's workers, copied from the registering process, and the lookup of modules in it.

It consists of the interpreter, the module search path, the working directory, the environment variables and `sys.argv`.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import json
import os
import select
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from pytriton._protocol import env_variables as rules
from pytriton._protocol import trace_config
from pytriton._protocol.messages import WorkerEnvironment, sendable
from pytriton._register.environments import (
    check_version,
    is_archive,
    provide_worker_packages,
    unpack,
    with_requirements,
)
from pytriton.exceptions import PyTritonBadParameterError

if TYPE_CHECKING:
    from pytriton.run_options import Env, RegisterModelOptions, RegisterOptions, StrPath

#: Names that code uses to read environment variables.
_READERS = frozenset({"environ", "environb", "getenv"})
#: Maximum number of objects to examine, since a callable may refer to a whole program.
_MAX_OBJECTS = 2000
#: Timeout for one answer of the probe, which may have to import a large package.
_ANSWER_TIMEOUT_S = 60.0
#: Packages that every worker has: the daemon provides pytriton, and boot.py refuses to run without the others.
_IN_EVERY_WORKER = frozenset({"pytriton", "cloudpickle", "msgspec", "numpy", "zmq"})

#: The last environment queried, and the modules that its interpreter did not find.
_last_query: tuple[WorkerEnvironment, set[str]] | None = None


def capture_environment(
    python: StrPath | None = None,
    env: Env | None = None,
    cwd: StrPath | None = None,
    sys_path: Iterable[StrPath] | None = None,
    argv: Iterable[str] = ("",),
) -> WorkerEnvironment:
    """Return the environment for workers: this process's environment with the caller's changes.

    Args:
        python: an interpreter, its name on PATH, the folder of a virtual or conda environment, or an
            archive of one (conda-pack); None: the interpreter of this process
        env: variables to set in the worker (the value None omits a variable), or names of variables to
            copy, in addition to those forwarded automatically (_protocol/env_variables.py)
        cwd: working directory of the worker; None: that of this process
        sys_path: folders to prepend to the module search path
        argv: `sys.argv` of the worker; the default is that of Triton's python backend

    Raises:
        PyTritonBadParameterError: an argument names something that does not exist, this process has no
            interpreter, or its working directory has been deleted
    """
    folder = _working_directory(cwd)
    interpreter = own_interpreter() if python is None else find_interpreter(python)
    same = interpreter == os.path.abspath(sys.executable or "")
    own = rules.forwarded_variables(os.environ, own_interpreter=same)
    wanted = select_variables(env)
    variables = {k: value for k, value in {**own, **wanted}.items() if value is not None}
    # Variables that the caller omitted with env= are not reported as missing.
    stayed = [name for name in rules.local_variables(os.environ, variables) if name not in wanted]
    first = [os.path.abspath(os.path.expanduser(os.fspath(entry))) for entry in sys_path or ()]
    if python is None:
        search = [*first, *own_search_path(folder)]
    else:
        search = [*first, *_search_path_of(interpreter, variables, folder)] if first else []
    return WorkerEnvironment(
        interpreter,
        list(dict.fromkeys(search)),
        folder,
        variables,
        argv=[sendable(word) for word in argv],
        stayed=stayed,
    )


def select_interpreter(
    python: StrPath | None,
    requirements: Sequence[str] | None,
    say: Callable[[str], None] = lambda text: None,
) -> StrPath | None:
    """Return the workers' interpreter, with the requirements installed; None stands for this process's interpreter.

    Args:
        python: the option `python`
        requirements: the option `requirements`
        say: called with progress messages

    Raises:
        PyTritonBadParameterError: there is no such interpreter, or the requirements cannot be installed
    """
    if requirements is None:
        return python
    base = own_interpreter() if python is None else find_interpreter(python)
    return with_requirements(requirements, base, say)


def worker_environment(
    python: StrPath | None,
    options: RegisterOptions | RegisterModelOptions,
    argv: Iterable[str] = ("",),
    say: Callable[[str], None] = lambda text: None,
) -> WorkerEnvironment:
    """Return the environment for the workers of a registration.

    Args:
        python: the interpreter that `select_interpreter` returned
        options: the options of the registration
        argv: as for `capture_environment`
        say: called with progress messages

    Raises:
        PyTritonBadParameterError: as `capture_environment`; or the interpreter lacks packages that cannot be installed
    """
    world = capture_environment(python, options["env"], options["cwd"], options["sys_path"], argv)
    if options["trace_config"]:
        world.env.update(trace_config.environment(options["trace_config"]))
    return world if python is None else provide_worker_packages(world, say)


def own_interpreter() -> str:
    """Return the interpreter of this process.

    Raises:
        PyTritonBadParameterError: this process is a frozen program, or Python embedded in another program, and cannot
            start a worker
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise PyTritonBadParameterError(
            "This process is a frozen program, or a program that embeds Python, so it cannot start a worker. "
            "Choose an interpreter: "
            "register(..., python='/path/to/python')."
        )
    return os.path.abspath(sys.executable)


def find_interpreter(python: StrPath) -> str:
    """Return the absolute path of the interpreter that `python=` refers to; an archive is unpacked first.

    Links are not resolved, since a virtual environment's interpreter is recognized by its path.

    Raises:
        PyTritonBadParameterError: the interpreter does not exist or cannot be executed
    """
    text = os.path.expanduser(os.fspath(python))
    path = os.path.abspath(text)
    if is_archive(path):
        return unpack(path)
    if os.path.isdir(path):
        inside = os.path.join(path, "bin", "python")
        if not os.path.isfile(inside):
            raise PyTritonBadParameterError(
                f"python={text!r} is a folder without bin/python. Pass an interpreter, or the "
                "folder of a virtual or conda environment."
            )
        path = inside
    elif os.sep not in text:
        path = shutil.which(text) or path
    if not os.path.isfile(path):
        raise PyTritonBadParameterError(
            f"python={text!r}: {path} does not exist. Pass an interpreter, or the folder of a "
            "virtual or conda environment."
        )
    if not os.access(path, os.X_OK):
        raise PyTritonBadParameterError(f"python={text!r}: {path} cannot be executed by this user.")
    return path


def own_search_path(folder: str) -> list[str]:
    """Return the existing entries of `sys.path` as absolute paths, including archives such as a zipapp.

    The entry '' (in an interactive session, a notebook, or with -c) becomes the working directory, or `folder` if that
    has been deleted.
    """
    try:
        base = os.getcwd()
    except FileNotFoundError:
        base = folder
    entries = (os.fsdecode(entry) for entry in sys.path if isinstance(entry, (str, bytes)))
    absolute = (os.path.join(base, entry) if entry else base for entry in entries)
    return [path for path in dict.fromkeys(map(os.path.normpath, absolute)) if os.path.exists(path)]


def select_variables(env: Env | None) -> dict[str, str | None]:
    """Return the variables that `env=` sets or copies; the value None omits a variable.

    Raises:
        PyTritonBadParameterError: `env` has the wrong type, or names a variable that is not set
    """
    if env is None:
        return {}
    if isinstance(env, str) or not isinstance(env, (Mapping, Iterable)):
        raise PyTritonBadParameterError(
            f"env={env!r}: pass a dict of variables, or a list of names of variables to copy."
        )
    wanted: dict[str, str | None] = (
        {**env} if isinstance(env, Mapping) else {name: _of_this_process(name) for name in env}
    )
    for name, value in wanted.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise PyTritonBadParameterError(f"env: {name!r} is not a valid variable name.")
        if value is not None and (not isinstance(value, str) or "\0" in value):
            raise PyTritonBadParameterError(
                f"env: the value of {name} must be a string without NUL, got "
                f"{type(value).__name__}."
            )
    return wanted


def _of_this_process(name: str) -> str:
    try:
        return os.environ[name]
    except (KeyError, TypeError):
        raise PyTritonBadParameterError(
            f"env: the variable {name!r} cannot be copied, because it is not set in this process. To set it "
            "in the worker only, pass a dict: env={'NAME': 'value'}."
        ) from None


def _working_directory(cwd: StrPath | None) -> str:
    try:
        folder = os.getcwd() if cwd is None else os.path.abspath(os.path.expanduser(os.fspath(cwd)))
    except FileNotFoundError:
        raise PyTritonBadParameterError(
            "The working directory of this process has been deleted. Choose one for the worker: "
            "register(..., cwd='/an/absolute/path')."
        ) from None
    if not os.path.isdir(folder):
        raise PyTritonBadParameterError(f"cwd={str(cwd)!r}: the folder {folder} does not exist.")
    return folder


def _search_path_of(interpreter: str, variables: Mapping[str, str], folder: str) -> list[str]:
    # A worker whose environment has a search path uses nothing else, so the folders that the caller added must be
    # followed by the interpreter's default search path.
    with closing(Probe(WorkerEnvironment(interpreter, [], folder, dict(variables)))) as probe:
        return probe.search_path


# ── modules that a worker finds ──────────────────────────────────────────────────────────────────


class WorkerModules:
    """Looks up modules in a worker's environment, to determine whether the worker would import the same ones as this process.

    Close it after use.

    Most modules are found on the search path. For the others (from an import hook of an editable install, or created at
    run time), the worker's interpreter is started once and queried. If that is the interpreter of this process, modules
    that it did not find are remembered for the environment and not queried again: their code is sent, which also works
    if they have been installed in the meantime.
    """

    def __init__(self, world: WorkerEnvironment, *, own_interpreter: bool) -> None:
        self._world = world
        self._own_interpreter = own_interpreter
        self._known: dict[str, bool] = {}
        self._probe: Probe | None = None

    def close(self) -> None:
        """Stop the worker's interpreter, if it was started."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    @property
    def search_path(self) -> list[str]:
        """Return the worker's module search path; [] stands for the default path of another interpreter."""
        return self._world.sys_path

    def finds(self, module: ModuleType) -> bool:
        """Return True if the worker, when it imports `module` by name, would get the same module as this process.

        Two modules are the same if they come from the same file. With another interpreter, installed modules
        (site-packages, standard library) count as found without a lookup, since only that environment's own builds work
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
        # Not cached for another interpreter: users install there what it lacks and register again.
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
    """Return the set of modules that an environment's interpreter did not find. Only the most recent set is cached."""
    global _last_query
    if _last_query is None or _last_query[0] != world:
        _last_query = (world, set())
    return _last_query[1]


def find_spec(name: str, search: Sequence[str]) -> ModuleSpec | None:
    """Search the folders in `search` for a module as an import would, without importing it; return None if not found."""
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
    """Return True if a module belongs to a package that every worker has."""
    return name.partition(".")[0] in _IN_EVERY_WORKER


@functools.lru_cache(maxsize=1)
def _installation() -> frozenset[str]:
    """Return this interpreter's folders for the standard library and for packages. Cached, as it takes 0.5 ms."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return frozenset(sysconfig.get_path(kind) for kind in kinds)


def is_installed(file: str) -> bool:
    """Return True if a module's file belongs to the standard library or to an installed package."""
    folders = {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    folders |= _installation()
    real = os.path.realpath(file)
    return any(real.startswith(os.path.realpath(folder) + os.sep) for folder in folders if folder)


class Probe:
    """A short-lived process in a worker's environment that looks up modules. Starts immediately; close it after use.

    Attributes:
        search_path: the interpreter's module search path

    Raises:
        PyTritonBadParameterError: the interpreter cannot be started, or does not answer
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
                bufsize=0,  # a buffer would hide unread data from `select`
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
        """Return whether the interpreter finds a module, and the module's file if it has one."""
        found, file = self._ask(module)
        return bool(found), file

    def close(self) -> None:
        """Kill the process."""
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


# ── variables that a callable reads ─────────────────────────────────────────────────────────────


def warn_of_missing(model_name: str, targets: Iterable[Any], stayed: Iterable[str]) -> None:
    """Warn about variables that the callables read but that are not forwarded to workers.

    Args:
        model_name: for the warning
        targets: the callables
        stayed: names of variables that are set in this process and not forwarded
    """
    missing = sorted(variables_read(targets).intersection(stayed))
    if not missing:
        return
    words = ", ".join(missing)
    several = len(missing) > 1
    warnings.warn(
        f"Model {model_name!r} reads {words} from its environment. {'They are' if several else 'It is'} set here, but "
        f"not forwarded to workers, because {'they look' if several else 'it looks'} like a secret or "
        f"{'belong' if several else 'belongs'} to this session. To forward {'them' if several else 'it'}, pass "
        f"env={missing}; to suppress this warning, pass env={{{missing[0]!r}: None}}.",
        stacklevel=first_outside(),
    )


def variables_read(targets: Iterable[Any]) -> set[str]:
    """Return the strings in callables, and in the code they use, that may be names of environment variables.

    These are the strings in functions that use os.environ or os.getenv. Code of installed packages is skipped.
    """
    found: set[str] = set()
    waiting = list(targets)
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_OBJECTS:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for part in _parts(thing):
            if isinstance(part, CodeType):
                found |= _strings(part)
            else:
                waiting.append(part)
    return found


def _parts(thing: Any) -> Iterator[Any]:
    """Yield an object's code, and other objects whose code may run when it is called."""
    if isinstance(thing, functools.partial):
        yield thing.func
    elif inspect.ismethod(thing):
        yield thing.__func__
        yield thing.__self__
    elif inspect.isfunction(thing):
        if _is_foreign(thing):
            return
        yield thing.__code__
        yield from _values(thing)
    elif inspect.isclass(thing):
        if not _is_foreign(thing):
            members = (inspect.getattr_static(thing, name) for name in dir(thing))
            yield from (getattr(member, "__func__", member) for member in members)
    elif not isinstance(thing, ModuleType) and not _is_foreign(type(thing)):
        yield type(thing)
        yield from getattr(thing, "__dict__", {}).values()


def _values(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            yield cell.cell_contents
    for name in globals_used(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield wrapped


def _is_foreign(thing: Any) -> bool:
    """Return True if a function or class is not the user's own code: built in, or from an installed package."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        return False
    file = getattr(module, "__file__", None)
    return file is None or module.__name__.split(".")[0] == "pytriton" or is_installed(file)


def _strings(code: CodeType) -> set[str]:
    """Return the strings in the code objects (including nested ones) that use os.environ or os.getenv."""
    inside = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    found = set().union(*map(_strings, inside)) if inside else set()
    if not _READERS.isdisjoint(code.co_names) or not _READERS.isdisjoint(code.co_freevars):
        found |= {constant for constant in code.co_consts if isinstance(constant, str)}
    return found


def globals_used(code: CodeType) -> set[str]:
    """Return the names of the global variables that code uses, including its nested functions."""
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= globals_used(constant)
    return names


def first_outside() -> int:
    """Return the `stacklevel` that attributes a warning to the first caller outside pytriton."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # pytriton
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(
        package
    ):
        frame = frame.f_back
        level += 1
    return level
