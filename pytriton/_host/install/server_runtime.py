"""Finds tritonserver and what its proxies need, or fetches it, and lays out the backend folder.

>>> runtime = find_or_install_server(ServerChoice(), progress=print)       # doctest: +SKIP
>>> backends = lay_out_backends(runtime, runtime_directory)                # doctest: +SKIP
>>> command = [str(runtime.tree.binary), f"--backend-directory={backends}"]     # doctest: +SKIP
>>> env = server_environment(runtime, os.environ, python_link(backends))   # doctest: +SKIP
>>> Popen(command, env=env, cwd=backends / "pytriton")                     # doctest: +SKIP

The working directory matters: although the stub runs isolated, it puts the empty string first on
sys.path (seen), so a `numpy.py` or a checkout of ours in the folder where somebody happens to start
a daemon would be imported into the proxy.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from pytriton._host.install.cache import (
    Progress,
    ServerRuntimeError,
    cache_dir,
    explain_os_error,
)
from pytriton._host.install.compiled_front import (
    NativeProgram,
    library_environment,
    make_front,
)
from pytriton._host.install.compiled_proxy import build, build_interposer, misfit
from pytriton._host.install.interpreters import PROXY_VERSIONS, find_interpreter
from pytriton._host.install.proxy_compiler import NATIVE_BACKEND
from pytriton._host.install.proxy_env import (
    LIBRARY_DIR,
    ProxyEnvironment,
    make_proxy_environment,
    still_serves,
)
from pytriton._host.install.server_choice import ServerChoice, choice_of
from pytriton._host.install.server_tree import NoServer, ServerTree, read_tree
from pytriton._host.install.wheel import PINNED, install_wheel, is_unpacked, wheel_tree
from pytriton._host.settings.triton_options import refuse_unknown
from pytriton._protocol.env_variables import with_direct_loopback
from pytriton._protocol.files.rundir import ENV_RUNTIME_DIR

_log = structlog.get_logger(__name__)

__all__ = [
    "PythonBackend",
    "ServerChoice",
    "ServerRuntime",
    "ServerRuntimeError",
    "choice_of",
    "find_or_install_server",
    "find_server",
    "is_python_laid_out",
    "lay_out_backends",
    "lay_out_python",
    "make_python_backend",
    "python_link",
    "server_environment",
]

#: What needs the Python backend that a tritonserver lacks.
NEEDS_PYTHON_BACKEND = "the Python proxy and models of Triton's python backend need it"
#: The option of later versions that lets clients register shared memory.
CLIENT_SHM = "allow-client-shm"
_OPTION = re.compile(r"^\s+--([a-z0-9-]+)", re.MULTILINE)
_HELP_S = 60.0
#: A tritonserver binary or the folder of an installation; the setting `tritonserver` wins over it.
SERVER_VARIABLE = "PYTRITON_DAEMON_TRITONSERVER"

#: Where NVIDIA's containers have it.
CONTAINER_ROOT = Path("/opt/tritonserver")

#: The backend that our models name, and what its folder holds of this package.
BACKEND_NAME = "pytriton"
_PROXY_PACKAGES = ("pytriton._protocol", "pytriton.proxy_backend")
_MODEL_FILE = "from pytriton.proxy_backend.model import TritonPythonModel  # noqa: F401\n"


@dataclass(frozen=True)
class PythonBackend:
    """Triton's own python backend, with the environment of its stub: the Python proxy runs in it."""

    folder: Path  #: of the backend; its stub is for the environment's Python
    environment: ProxyEnvironment


@dataclass(frozen=True)
class ServerRuntime:
    """A tritonserver that is ready to be started, with all that it must be told.

    Its own backends are `tree.backends`; hand it the folder that lay_out_backends() makes instead.
    """

    tree: ServerTree
    source: str  #: "setting", "environment", "container", "path" or "cache"
    choice: ServerChoice
    native: Path | None  #: folder of the compiled proxy; None: the Python proxy serves all models
    #: None: made by make_python_backend(), should a model need it
    python: PythonBackend | None
    front: NativeProgram | None = None  #: None: NVIDIA's executable
    options: frozenset[str] = frozenset()  #: those of NVIDIA's executable, where it serves
    #: Has clients' requests to load and unload models come to the daemon; None: they are tritonserver's alone.
    interposer: Path | None = None


def find_or_install_server(choice: ServerChoice, progress: Progress) -> ServerRuntime:
    """Return a tritonserver with a proxy; fetch and make what is missing.

    Where the compiled proxy serves, no Python is needed inside of tritonserver, and none is looked for.

    Order: the setting, $PYTRITON_DAEMON_TRITONSERVER, /opt/tritonserver, PATH, our cache, and else
    the pinned wheel. A setting or variable that names no usable tritonserver is an error; what is
    only found by looking around is passed over with a line to `progress`.

    Raises:
        ServerRuntimeError: what is wrong, where, and the mend.
    """
    cache = cache_dir(choice.cache_dir)
    found = find_server(choice, progress)
    if choice.proxy_python is not None:  # a wrong one is told at once, not when it is first needed
        versions = found[0].python_versions if found else None
        find_interpreter(choice.proxy_python, versions or PROXY_VERSIONS)
    if found is None:
        wheel = choice.wheel.expanduser().absolute() if choice.wheel else None
        found = (_read_wheel_tree(install_wheel(cache, progress, wheel)), "cache")
    tree, source = found
    native, why_not = None, ""
    try:
        native = None if choice.proxy == "python" else _native_proxy(choice, tree, source, progress)
    except ServerRuntimeError as error:
        if choice.proxy == "native":
            raise
        why_not = str(error)
        progress(f"the Python proxy serves all models, which is slower: {why_not}")
    front = None if choice.front == "triton" else _native_front(choice, tree, progress)
    if front is None and tree.binary is None:
        raise ServerRuntimeError(
            f"{tree.lacks}, which front = triton needs; leave that setting out, or name a whole "
            "tritonserver"
        )
    options = frozenset() if front is not None else _options(tree, choice)
    interposer = _interposer(choice, progress) if native is not None or front is not None else None
    runtime = ServerRuntime(
        tree,
        source,
        choice,
        native,
        python=None,
        front=front,
        options=options,
        interposer=interposer,
    )
    if native is not None and not choice.python_backend:
        return runtime
    try:
        return replace(runtime, python=make_python_backend(runtime, progress))
    except ServerRuntimeError as error:
        if not why_not:
            raise
        raise ServerRuntimeError(
            f"{error}\nOr mend what the compiled proxy lacks, which needs no Python: {why_not}"
        ) from error


def _options(tree: ServerTree, choice: ServerChoice) -> frozenset[str]:
    """Return the options that NVIDIA's executable has, by what it says itself.

    Raises:
        ServerRuntimeError: it has not what the settings ask for.
    """
    env = {**os.environ, **library_environment(tree.libraries)}
    try:
        # Its status is 1 after --help.
        done = subprocess.run(
            [tree.program, "--help"], env=env, capture_output=True, timeout=_HELP_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerRuntimeError(f"{tree.program} does not run: {error}") from error
    options = frozenset(_OPTION.findall((done.stdout + done.stderr).decode(errors="replace")))
    try:
        refuse_unknown(choice.options, options)
    except ValueError as error:
        raise ServerRuntimeError(
            f"{tree.program}: {error}. Correct tritonserver_options, or use a newer tritonserver"
        ) from None
    if not choice.allow_client_shm and CLIENT_SHM not in options:
        raise ServerRuntimeError(
            f"allow_client_shm is false, and {tree.program} has no switch for that: use the native front, or a newer "
            "tritonserver, or leave shared-memory among restricted_endpoints, which takes the access token"
        )
    return options


def make_python_backend(runtime: ServerRuntime, progress: Progress) -> PythonBackend:
    """Return Triton's own python backend with an environment for its stub, which is made if need be.

    Raises:
        ServerRuntimeError: no Python fits, or the environment cannot be made.
    """
    choice, tree = runtime.choice, runtime.tree
    if tree.lacks_python is not None:
        raise ServerRuntimeError(f"{tree.lacks_python}; {NEEDS_PYTHON_BACKEND}")
    wheels = choice.wheel.expanduser().absolute().parent if choice.wheel else None
    interpreter = find_interpreter(choice.proxy_python, tree.python_versions)
    environment = make_proxy_environment(interpreter, cache_dir(choice.cache_dir), progress, wheels)
    return PythonBackend(dict(tree.python_backends)[interpreter.version], environment)


def _native_proxy(choice: ServerChoice, tree: ServerTree, source: str, progress: Progress) -> Path:
    """Return the folder of the compiled proxy.

    Raises:
        ServerRuntimeError: it cannot be built or loaded, or this tritonserver does not take it.
    """
    native = build(cache_dir(choice.cache_dir), progress)
    flaw = None if source == "cache" else misfit(native, tree)
    if flaw:
        raise ServerRuntimeError(f"{tree.root} does not take the compiled proxy: {flaw}")
    return native


def _interposer(choice: ServerChoice, progress: Progress) -> Path | None:
    """Return the library that has clients' requests about models come to the daemon; None if it cannot be had."""
    try:
        return build_interposer(cache_dir(choice.cache_dir), progress)
    except ServerRuntimeError as error:
        progress(f"clients that load models of repositories load what tritonserver has: {error}")
        return None


def _native_front(
    choice: ServerChoice, tree: ServerTree, progress: Progress
) -> NativeProgram | None:
    """Return the native front; None if it cannot be had and need not be, which is told.

    Raises:
        ServerRuntimeError: it cannot be had, and the settings need it.
    """
    try:
        return make_front(tree, cache_dir(choice.cache_dir), progress)
    except ServerRuntimeError as error:
        if choice.front == "native" or tree.binary is None:
            raise
        _log.warning("NVIDIA's tritonserver answers clients instead", reason=str(error))
        progress(f"NVIDIA's tritonserver answers clients: {error}")
        return None


def find_server(choice: ServerChoice, progress: Progress) -> tuple[ServerTree, str] | None:
    """Return a tritonserver that is on this machine and where it was found; fetch nothing.

    With `choice.wheel` only the cache is looked at, as the user asked for that wheel's binaries.

    Raises:
        ServerRuntimeError: the setting or the environment variable names no usable tritonserver.
    """
    if choice.wheel is None:
        for path, source, explicit in _places(choice):
            tree = read_tree(path)
            if isinstance(tree, ServerTree):
                if explicit or tree.lacks is None:
                    return tree, source
                flaw = tree.lacks
            else:
                flaw = tree.flaw
            if explicit:
                raise ServerRuntimeError(
                    f"{explicit} is set to {path}, but {flaw}. Set it to a tritonserver binary or to the folder "
                    "that holds lib/libtritonserver.so or bin/tritonserver and backends/, or leave it out to use the "
                    "one that pytriton-daemon fetches"
                )
            progress(f"passing over the tritonserver at {path}: {flaw}")
    cached = wheel_tree(cache_dir(choice.cache_dir))
    return (_read_wheel_tree(cached), "cache") if is_unpacked(cached) else None


def _places(choice: ServerChoice) -> Iterator[tuple[Path, str, str]]:
    """Yield (path, source, what the user set; empty if it was found by looking around)."""
    if choice.tritonserver is not None:
        yield choice.tritonserver, "setting", "tritonserver"
    elif os.environ.get(SERVER_VARIABLE):
        yield Path(os.environ[SERVER_VARIABLE]), "environment", SERVER_VARIABLE
    if os.path.exists(CONTAINER_ROOT):
        yield CONTAINER_ROOT, "container", ""
    on_path = shutil.which("tritonserver")
    if on_path:
        yield Path(on_path), "path", ""


def _read_wheel_tree(folder: Path) -> ServerTree:
    tree = read_tree(folder)
    if isinstance(tree, NoServer):
        raise ServerRuntimeError(f"remove {folder} and start again: {tree.flaw}")
    return replace(tree, version=PINNED.triton_version)


def server_environment(
    runtime: ServerRuntime, base: Mapping[str, str], python: Path
) -> dict[str, str]:
    """Return the environment variables to start tritonserver with.

    The stub takes the Python environment of the first `python3` on PATH, so `python` comes first: the folder of the
    proxy's environment, which need not be there yet. Variables that would bend that Python are left out.
    """
    bent = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    environ = {key: value for key, value in base.items() if key not in bent}
    environ["PATH"] = _prepend([python / "bin"], base.get("PATH", os.defpath))
    libraries = [*runtime.tree.libraries, python / LIBRARY_DIR]
    environ["LD_LIBRARY_PATH"] = _prepend(libraries, base.get("LD_LIBRARY_PATH", ""))
    return with_direct_loopback(
        environ
    )  # of its clients, such as that of OpenTelemetry's collector


def _prepend(folders: Sequence[Path], rest: str) -> str:
    # an empty entry would mean the current folder, so none may come from an empty `rest`
    return ":".join([*map(str, folders), *([rest] if rest else [])])


def lay_out_backends(
    runtime: ServerRuntime, target_dir: Path, *, is_taken_over: bool = False
) -> Path:
    """Make a daemon's own backend folder below its runtime directory and return it.

    ```
    backends/python      link to the server's Python backend with the stub for the proxy's Python, once it is needed
    proxy-python         link to the proxy's Python environment, once it is needed
    backends/pytriton/   model.py and pytriton/{ipc,proxy_backend}: what runs inside the stub
    backends/pytriton_native   link to the compiled proxy, if there is one
    backends/...         links to the server's other backends
    ```
    The stub appends the folder of a Python-based backend to sys.path, so the proxy's imports are
    the same there as anywhere else, and a model that says `backend: "pytriton"` needs no code of
    its own. The sources are copied: what is served must not change while a checkout is edited.

    `is_taken_over`: a former version of the daemon's process has laid out one. The Python that models may need by now
    stays there, where it fits this version, too.

    Raises:
        ServerRuntimeError: the folder cannot be written.
    """
    backends = target_dir.absolute() / "backends"
    try:
        python = _laid_out_python(runtime.tree, backends) if is_taken_over else None
        if backends.exists():  # of a former daemon in this runtime directory
            shutil.rmtree(backends)
        backends.mkdir(0o700, parents=True)
        # Whole folders are linked: a link to a library in a real folder is refused by the server.
        python_link(backends).unlink(missing_ok=True)
        if runtime.python is not None:
            lay_out_python(runtime.python, backends)
        elif python is not None:
            _link_python(*python, backends)
        _copy_proxy(backends / BACKEND_NAME)
        if runtime.native is not None:
            (backends / NATIVE_BACKEND).symlink_to(runtime.native, target_is_directory=True)
        others = runtime.tree.backends
        for other in others.iterdir() if others.is_dir() else ():
            # Without the Python of its stub, the python backend would hang in its first model, and all loads with it.
            if other.is_dir() and other.name != "python" and not (backends / other.name).exists():
                (backends / other.name).symlink_to(other)
    except (OSError, shutil.Error) as error:
        detail = explain_os_error(error, backends, f"--runtime-dir or {ENV_RUNTIME_DIR}")
        raise ServerRuntimeError(f"cannot lay out tritonserver's backends: {detail}") from error
    return backends


def python_link(backends: Path) -> Path:
    """Return where the proxy's Python environment is linked beside the folder that lay_out_backends() makes."""
    return backends.parent / "proxy-python"


def lay_out_python(python: PythonBackend, backends: Path) -> None:
    """Give tritonserver's python backend the Python of its stub: before it is loaded for the first time."""
    _link_python(python.folder, python.environment.root, backends)


def is_python_laid_out(backends: Path) -> bool:
    """Whether tritonserver's python backend has a Python here."""
    return (backends / "python").is_symlink() and python_link(backends).is_symlink()


def _link_python(folder: Path, environment: Path, backends: Path) -> None:
    links = {backends / "python": folder, python_link(backends): environment}
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _laid_out_python(tree: ServerTree, backends: Path) -> tuple[Path, Path] | None:
    """Return the python backend and its environment that are linked here, if this version would link them, too."""
    try:
        folder, environment = (backends / "python").readlink(), python_link(backends).readlink()
    except OSError:  # there are none
        return None
    fits = any(
        folder == ours and still_serves(environment, version)
        for version, ours in tree.python_backends
    )
    return (folder, environment) if fits else None


def _copy_proxy(folder: Path) -> None:
    package = folder / "pytriton"
    package.mkdir(parents=True)
    # Not our own __init__.py: in the stub there is nothing for it to import lazily.
    (package / "__init__.py").touch()
    (folder / "model.py").write_text(_MODEL_FILE)
    for name in _PROXY_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise ServerRuntimeError(f"this installation of pytriton-daemon lacks {name}")
        source = next(iter(spec.submodule_search_locations))
        shutil.copytree(
            source,
            package / name.rpartition(".")[2],
            ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "native", "front", "interposer"),
            copy_function=shutil.copyfile,  # whose times they have says nothing
        )
