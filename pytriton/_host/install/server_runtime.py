"""Installs tritonserver and what its proxies need, and creates its backend directory.

>>> runtime = find_or_install_server(ServerChoice(), progress=print)       # doctest: +SKIP
>>> backends = lay_out_backends(runtime, runtime_directory)                # doctest: +SKIP
>>> command = [str(runtime.tree.binary), f"--backend-directory={backends}"]     # doctest: +SKIP
>>> env = server_environment(runtime, os.environ, python_link(backends))   # doctest: +SKIP
>>> Popen(command, env=env, cwd=backends / "pytriton")                     # doctest: +SKIP

The working directory matters: although the stub runs isolated, sys.path starts with the empty string
(observed). So the proxy would import a `numpy.py` or a checkout from the directory where the daemon
was started.
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

from pytriton._host.bounded_run import run_bounded
from pytriton._host.install.cache import (
    Progress,
    ServerRuntimeError,
    cache_dir,
    explain_os_error,
)
from pytriton._host.install.compiled_frontend import (
    NativeProgram,
    library_environment,
    make_frontend,
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
from pytriton._host.install.server_tree import NoServer, ServerTree, read_tree
from pytriton._host.install.wheel import PINNED, install_wheel, is_unpacked, wheel_tree
from pytriton._host.settings import frontend_choice
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.triton_options import beyond_pinned, refuse_unknown
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

#: The end of the error about a tritonserver without the Python backend.
NEEDS_PYTHON_BACKEND = "the Python proxy and models of Triton's python backend need it"
#: Option of later versions of tritonserver that lets clients register shared memory.
CLIENT_SHM = "allow-client-shm"
_OPTION = re.compile(r"^\s+--([a-z0-9-]+)", re.MULTILINE)
_HELP_S = 60.0
#: A tritonserver binary or the directory of an installation; the setting `tritonserver` overrides it.
SERVER_VARIABLE = "PYTRITON_DAEMON_TRITONSERVER"

#: The directory of tritonserver in NVIDIA's containers.
CONTAINER_ROOT = Path("/opt/tritonserver")

#: The name of the Python proxy's backend in model configurations, and the subpackages in its directory.
BACKEND_NAME = "pytriton"
_PROXY_PACKAGES = ("pytriton._protocol", "pytriton.proxy_backend")
_MODEL_FILE = (
    "from pytriton.proxy_backend.python_proxy.model import TritonPythonModel  # noqa: F401\n"
)


@dataclass(frozen=True)
class ServerChoice:
    """Settings for finding tritonserver and its proxy. Every field is optional."""

    #: a binary or an installation's directory; if set, no other one is tried
    tritonserver: Path | None = None
    proxy_python: Path | None = (
        None  #: the interpreter for the proxy; if set, no other one is tried
    )
    wheel: Path | None = None  #: a local wheel of the binaries, used instead of downloading it
    cache_dir: Path | None = None
    proxy: str = (
        "auto"  #: which proxy serves models: "auto", "native" (the compiled one) or "python"
    )
    frontend: str = "auto"  #: the program around Triton's core: "auto", "native" or "triton"
    options: tuple[str, ...] = ()  #: options of tritonserver that not every version has
    allow_client_shm: bool = True
    python_backend: bool = False  #: whether Triton's own python backend is needed from the start


def choice_of(
    config: DaemonConfig, wheel: Path | None = None, *, python_backend: bool = False
) -> ServerChoice:
    """Create a `ServerChoice` from a daemon's settings, a local wheel, and whether the python backend is needed."""
    return ServerChoice(
        tritonserver=_optional_path(config.tritonserver),
        proxy_python=_optional_path(config.proxy_python),
        wheel=wheel,
        cache_dir=_optional_path(config.cache_dir),
        proxy=config.proxy,
        frontend=frontend_choice.chosen(config),
        options=tuple(beyond_pinned(config.tritonserver_options)),
        allow_client_shm=config.allow_client_shm,
        python_backend=python_backend,
    )


def _optional_path(setting: str | None) -> Path | None:
    return None if setting is None else Path(setting)


@dataclass(frozen=True)
class PythonBackend:
    """Triton's own python backend, which runs the Python proxy, and the environment of its stub."""

    folder: Path  #: the backend's directory; its stub is for the environment's Python
    environment: ProxyEnvironment


@dataclass(frozen=True)
class ServerRuntime:
    """A tritonserver that is ready to start, with its proxy and frontend.

    Start it with the backend directory that lay_out_backends() creates, not with its own (`tree.backends`).
    """

    tree: ServerTree
    choice: ServerChoice
    #: Directory of the compiled proxy; None: the Python proxy serves all models.
    native: Path | None
    #: None: make_python_backend() creates it if a model needs it
    python: PythonBackend | None
    frontend: NativeProgram | None = None  #: None: NVIDIA's executable
    options: frozenset[str] = frozenset()  #: the options of NVIDIA's executable, if it is used
    #: Passes clients' requests to load and unload models to the daemon; None: tritonserver handles them alone.
    interposer: Path | None = None


def find_or_install_server(choice: ServerChoice, progress: Progress) -> ServerRuntime:
    """Return a tritonserver with a proxy. Download and create what is missing.

    The compiled proxy needs no Python inside tritonserver, so with it, no Python is searched for.

    The search order is: the setting, $PYTRITON_DAEMON_TRITONSERVER, /opt/tritonserver, PATH, the cache, and
    finally the pinned wheel. A setting or variable that names an unusable tritonserver is an error. Unusable
    ones that are found elsewhere are skipped, with a line to `progress`.

    Raises:
        ServerRuntimeError: no tritonserver can be used; the text says what is wrong, where, and how to fix it.
    """
    cache = cache_dir(choice.cache_dir)
    found = find_server(choice, progress)
    if choice.proxy_python is not None:  # report a wrong one now, not when it is first needed
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
    frontend = None if choice.frontend == "triton" else _native_frontend(choice, tree, progress)
    if frontend is None and tree.binary is None:
        raise ServerRuntimeError(
            f"{tree.lacks}, which the setting frontend = triton needs; remove the setting, or use a complete "
            "tritonserver"
        )
    options = frozenset() if frontend is not None else _options(tree, choice)
    interposer = (
        _interposer(choice, progress) if native is not None or frontend is not None else None
    )
    runtime = ServerRuntime(
        tree,
        choice,
        native,
        python=None,
        frontend=frontend,
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
            f"{error}\nAlternatively, use the compiled proxy, which needs no Python, once this is fixed: {why_not}"
        ) from error


def _options(tree: ServerTree, choice: ServerChoice) -> frozenset[str]:
    """Return the options that NVIDIA's executable lists with `--help`.

    Raises:
        ServerRuntimeError: it lacks an option that the settings use.
    """
    env = {**os.environ, **library_environment(tree.libraries)}
    try:
        # It exits with status 1 after --help.
        done = run_bounded([tree.program, "--help"], timeout_s=_HELP_S, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerRuntimeError(f"{tree.program} does not run: {error}") from error
    options = frozenset(_OPTION.findall(done.stdout + done.stderr))
    try:
        refuse_unknown(choice.options, options)
    except ValueError as error:
        raise ServerRuntimeError(
            f"{tree.program}: {error}. Correct tritonserver_options, or use a newer tritonserver"
        ) from None
    if not choice.allow_client_shm and CLIENT_SHM not in options:
        raise ServerRuntimeError(
            f"allow_client_shm is false, but {tree.program} has no option for that: use the native frontend, or a newer "
            "tritonserver, or keep shared-memory in restricted_endpoints, which requires the access token"
        )
    return options


def make_python_backend(runtime: ServerRuntime, progress: Progress) -> PythonBackend:
    """Return Triton's own python backend and an environment for its stub. Create the environment if necessary.

    Raises:
        ServerRuntimeError: no suitable Python was found, or the environment cannot be created.
    """
    choice, tree = runtime.choice, runtime.tree
    if tree.lacks_python is not None:
        raise ServerRuntimeError(f"{tree.lacks_python}; {NEEDS_PYTHON_BACKEND}")
    wheels = choice.wheel.expanduser().absolute().parent if choice.wheel else None
    interpreter = find_interpreter(choice.proxy_python, tree.python_versions)
    environment = make_proxy_environment(interpreter, cache_dir(choice.cache_dir), progress, wheels)
    return PythonBackend(dict(tree.python_backends)[interpreter.version], environment)


def _native_proxy(choice: ServerChoice, tree: ServerTree, source: str, progress: Progress) -> Path:
    """Return the directory of the compiled proxy. Build it if necessary.

    Raises:
        ServerRuntimeError: the proxy cannot be built or loaded, or this tritonserver cannot use it.
    """
    native = build(cache_dir(choice.cache_dir), progress)
    flaw = None if source == "cache" else misfit(native, tree)
    if flaw:
        raise ServerRuntimeError(f"{tree.root} cannot use the compiled proxy: {flaw}")
    return native


def _interposer(choice: ServerChoice, progress: Progress) -> Path | None:
    """Return the library that passes clients' load and unload requests to the daemon; None if it is unavailable."""
    try:
        return build_interposer(cache_dir(choice.cache_dir), progress)
    except ServerRuntimeError as error:
        progress(f"clients can only load models that tritonserver itself serves: {error}")
        return None


def _native_frontend(
    choice: ServerChoice, tree: ServerTree, progress: Progress
) -> NativeProgram | None:
    """Return the native frontend. If it is unavailable and not required, log that and return None.

    Raises:
        ServerRuntimeError: it is unavailable, but the settings require it.
    """
    try:
        return make_frontend(tree, cache_dir(choice.cache_dir), progress)
    except ServerRuntimeError as error:
        if choice.frontend == "native" or tree.binary is None:
            raise
        _log.warning("using NVIDIA's frontend instead of the native one", reason=str(error))
        progress(f"using NVIDIA's frontend: {error}")
        return None


def find_server(choice: ServerChoice, progress: Progress) -> tuple[ServerTree, str] | None:
    """Find a tritonserver on this machine, without downloading one. Return it and its place; None if there is none.

    With `choice.wheel`, only the cache is searched, since the user wants the binaries of that wheel.

    Raises:
        ServerRuntimeError: the setting or the environment variable names an unusable tritonserver.
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
                    f"{explicit} is set to {path}, but {flaw}. Set it to a tritonserver binary or to the directory "
                    "that contains backends/ and either lib/libtritonserver.so or bin/tritonserver; or unset it to "
                    "let pytriton-daemon download tritonserver"
                )
            progress(f"skipping the tritonserver at {path}: {flaw}")
    cached = wheel_tree(cache_dir(choice.cache_dir))
    return (_read_wheel_tree(cached), "cache") if is_unpacked(cached) else None


def _places(choice: ServerChoice) -> Iterator[tuple[Path, str, str]]:
    """Yield each place to look in: (path, source, name of the setting or variable that names it, or "")."""
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

    The stub uses the environment of the first `python3` on PATH, so `python`, the proxy's Python environment, comes
    first. It may not exist yet. Variables that would affect this Python are removed.
    """
    bent = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    environ = {key: value for key, value in base.items() if key not in bent}
    environ["PATH"] = _prepend([python / "bin"], base.get("PATH", os.defpath))
    libraries = [*runtime.tree.libraries, python / LIBRARY_DIR]
    environ["LD_LIBRARY_PATH"] = _prepend(libraries, base.get("LD_LIBRARY_PATH", ""))
    # For the clients inside tritonserver, such as that of OpenTelemetry's collector.
    return with_direct_loopback(environ)


def _prepend(folders: Sequence[Path], rest: str) -> str:
    # An empty entry would mean the working directory, so an empty `rest` must not add one.
    return ":".join([*map(str, folders), *([rest] if rest else [])])


def lay_out_backends(
    runtime: ServerRuntime, target_dir: Path, *, is_taken_over: bool = False
) -> Path:
    """Create the daemon's backend directory in its runtime directory, and return its path.

    ```
    backends/python      link to the server's Python backend with the stub for the proxy's Python, once needed
    proxy-python         link to the proxy's Python environment, once needed
    backends/pytriton/   model.py and pytriton/{_protocol,proxy_backend}: the code that runs inside the stub
    backends/pytriton_native   link to the compiled proxy, if there is one
    backends/...         links to the server's other backends
    ```
    The stub appends the directory of a Python-based backend to sys.path, so the proxy's imports are
    the same there as elsewhere, and a model with `backend: "pytriton"` needs no code of
    its own. The sources are copied, so that editing a checkout does not change a running server.

    With `is_taken_over`, a previous version of the daemon has created the directory. If models may already use its
    Python, that is kept, provided that this version can use it, too.

    Raises:
        ServerRuntimeError: the directory cannot be written.
    """
    backends = target_dir.absolute() / "backends"
    try:
        python = _laid_out_python(runtime.tree, backends) if is_taken_over else None
        if backends.exists():  # left by a previous daemon in this runtime directory
            shutil.rmtree(backends)
        backends.mkdir(0o700, parents=True)
        # Whole directories are linked: the server refuses a link to a library in a real directory.
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
            # Without its stub's Python, the python backend would hang in its first model, and block all loads.
            if other.is_dir() and other.name != "python" and not (backends / other.name).exists():
                (backends / other.name).symlink_to(other)
    except (OSError, shutil.Error) as error:
        detail = explain_os_error(error, backends, f"--runtime-dir or {ENV_RUNTIME_DIR}")
        raise ServerRuntimeError(
            f"cannot set up tritonserver's backend directory: {detail}"
        ) from error
    return backends


def python_link(backends: Path) -> Path:
    """Return the path of the link to the proxy's Python environment, a sibling of the backend directory."""
    return backends.parent / "proxy-python"


def lay_out_python(python: PythonBackend, backends: Path) -> None:
    """Add the python backend and its Python to the backend directory, before tritonserver loads that backend."""
    _link_python(python.folder, python.environment.root, backends)


def is_python_laid_out(backends: Path) -> bool:
    """Return True if the backend directory has the python backend and its Python."""
    return (backends / "python").is_symlink() and python_link(backends).is_symlink()


def _link_python(folder: Path, environment: Path, backends: Path) -> None:
    links = {backends / "python": folder, python_link(backends): environment}
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _laid_out_python(tree: ServerTree, backends: Path) -> tuple[Path, Path] | None:
    """Return the linked python backend and its environment; None if this version would not use these."""
    try:
        folder, environment = (backends / "python").readlink(), python_link(backends).readlink()
    except OSError:  # there are no links
        return None
    fits = any(
        folder == ours and still_serves(environment, version)
        for version, ours in tree.python_backends
    )
    return (folder, environment) if fits else None


def _copy_proxy(folder: Path) -> None:
    package = folder / "pytriton"
    package.mkdir(parents=True)
    # Not our own __init__.py, whose lazy imports would find nothing in the stub.
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
            ignore=shutil.ignore_patterns(
                "__pycache__", "*.pyc", "backend", "frontend", "interposer"
            ),
            copy_function=shutil.copyfile,  # timestamps do not matter
        )
