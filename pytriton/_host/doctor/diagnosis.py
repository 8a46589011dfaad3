"""The checks of `pytriton-daemon doctor`: will a daemon work here, and if not, how can that be fixed?

The checks install nothing, change nothing and leave nothing behind. They raise no exceptions: a check that cannot be
completed is reported as a problem. The command line prints the results and derives its exit code from them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable

from pytriton._clash import clashing_distribution
from pytriton._host.bounded_run import run_bounded
from pytriton._host.doctor import machine_checks as machine
from pytriton._host.doctor.machine_checks import Check, Status
from pytriton._host.install import compiled_frontend, compiled_proxy
from pytriton._host.install.cache import CACHE_DIR_VARIABLE, ServerRuntimeError, cache_dir
from pytriton._host.install.interpreters import PROXY_VERSIONS, find_interpreter
from pytriton._host.install.proxy_compiler import compiler
from pytriton._host.install.server_runtime import ServerChoice, choice_of, find_server
from pytriton._host.install.server_tree import LIBRARY_NAME, ServerTree
from pytriton._host.install.wheel import PINNED
from pytriton._host.ports import PortError, check_port_free, is_held_by
from pytriton._host.settings import advisories, core_faults
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.files.rundir import RuntimeDir, default_runtime_dir

__all__ = ["Check", "Status", "checks_for", "run_checks"]

#: Space for the unpacked binaries (143 MB), perhaps an environment for the Python proxy (99 MB), and pip's temporary files.
INSTALL_BYTES = 400_000_000
SERVER_TIMEOUT_S = 60.0
#: The setting of the port that the daemon opens only for the first model with `openai=`.
_LATER = "openai_port"


def checks_for(config: DaemonConfig) -> list[Check]:
    """Check everything that a daemon with these settings depends on."""
    ports = {
        f"{name}_port": (getattr(config, f"{name}_address"), getattr(config, f"{name}_port"))
        for name in ("http", "grpc", "metrics", "openai")
        if getattr(config, f"allow_{name}", True)
    }
    return run_checks(
        choice_of(config),
        ports=ports,
        runtime_dir=config.rundir.path,
        state_dir=None if config.ephemeral else config.state_path,
        exposed=advisories.exposed(config),
        daemon=_running_daemon(config.rundir),
    )


def _running_daemon(rundir: RuntimeDir) -> int | None:
    try:
        return rundir.running_pid()
    except OSError:  # the check of the runtime directory reports it
        return None


def run_checks(
    choice: ServerChoice | None = None,
    *,
    ports: Mapping[str, tuple[str, int]] | None = None,
    runtime_dir: Path | None = None,
    state_dir: Path | None = None,
    exposed: Sequence[str] = (),
    daemon: int | None = None,
) -> list[Check]:
    """Run all checks and return their results.

    Args:
        choice: the settings for tritonserver.
        ports: name of a setting -> address and port, such as {"http_port": ("127.0.0.1", 8000)}. Port 0 is always free.
        runtime_dir: the daemon's runtime directory; by default the one that `start` would choose.
        state_dir: the directory for registrations; None if they are not persisted.
        exposed: the ports that other machines can reach (`advisories.exposed`).
        daemon: pid of the daemon that runs in the runtime directory, and so may use the ports.
    """
    choice = choice or ServerChoice()
    search = _search(choice)
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("machine", lambda: machine.check_machine(search.own_server)),
        ("distribution", _check_clash),
        ("proxy Python", partial(_check_proxy_python, choice, search)),
        ("tritonserver", partial(_check_server, search)),
        ("known faults", partial(_check_faults, choice, search, exposed)),
        ("core faults", partial(_check_core_faults, search)),
        ("proxy", partial(_check_proxy, choice)),
        ("frontend", partial(_check_frontend, choice)),
        ("cache", partial(_check_cache, choice)),
        *(
            (f"port {name}", partial(_check_port, host, name, port, daemon))
            for name, (host, port) in (ports or {}).items()
        ),
        (
            "runtime directory",
            lambda: machine.check_runtime_dir(runtime_dir or default_runtime_dir()),
        ),
        *_each_state_dir(state_dir),
        ("/dev/shm", lambda: machine.check_shared_memory(used=not _compiled_proxy(choice))),
        ("memfd", machine.check_memfd),
        ("pidfd", machine.check_pidfd),
        ("open files", machine.check_open_files),
        ("GPUs", machine.check_gpus),
    ]
    return [_run(name, check) for name, check in checks]


def _each_state_dir(folder: Path | None) -> Iterator[tuple[str, Callable[[], Check]]]:
    if folder is not None:
        yield "state directory", partial(machine.check_state_dir, folder)


def _run(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        detail = f"the check could not be completed: {type(error).__name__}: {error}"
        return Check(name, "problem", detail, "please report this to the project")


@dataclass(frozen=True)
class _Search:
    """The result of the search for tritonserver: the installation that was found, or the error."""

    found: tuple[ServerTree, str] | None
    error: str
    passed_over: tuple[str, ...]

    @property
    def own_server(self) -> bool:
        return self.found is not None and self.found[1] != "cache"


def _search(choice: ServerChoice) -> _Search:
    passed_over: list[str] = []
    try:
        found, error = find_server(choice, passed_over.append), ""
    except Exception as failure:  # reported by the check of tritonserver
        found, error = None, str(failure)
    return _Search(found, error, tuple(passed_over))


def _check_clash() -> Check:
    clash = clashing_distribution()
    if clash is None:
        return Check("distribution", "ok", "no other distribution claims the name pytriton")
    detail, _, mend = clash.partition("\n")
    return Check("distribution", "problem", detail, mend)


def _check_proxy_python(choice: ServerChoice, search: _Search) -> Check:
    found = search.found
    versions = (found[0].python_versions if found else None) or PROXY_VERSIONS
    try:
        python = find_interpreter(choice.proxy_python, versions)
    except ServerRuntimeError as error:
        demanded = choice.proxy_python is not None or choice.python_backend
        if not demanded and _compiled_proxy(choice):
            detail = (
                "not found, and not needed with the compiled proxy. Only models that tritonserver's own python backend "
                "serves (python_backend_model) need it"
            )
            return Check("proxy Python", "ok", detail)
        detail, _, mend = str(error).partition("\nOne of these fixes it:\n")
        mend = (
            mend or "set proxy_python to a CPython with a shared libpython, or remove the setting"
        )
        return Check("proxy Python", "problem", detail, mend)
    version = ".".join(map(str, python.version))
    return Check("proxy Python", "ok", f"{version}, {python.executable}, {python.libpython}")


def _check_server(search: _Search) -> Check:
    name = "tritonserver"
    if search.error:
        return Check(name, "problem", search.error, "correct the setting, or remove it")
    if search.found is None:
        missing = "not installed yet; the first start downloads it (55 MB)"
        detail = "; ".join([missing, *search.passed_over])
        return Check(name, "warning", detail, "pytriton-daemon install-server")
    tree, source = search.found
    flaw = _missing_libraries(tree) or _does_not_run(tree)
    where = f"{tree.program} (from: {source}{', ' + tree.version if tree.version else ''})"
    if flaw is not None:
        mend = "install the missing libraries, or use the binaries that pytriton-daemon downloads"
        return Check(name, "problem", f"{where}: {flaw}", mend)
    return Check(name, "ok", "; ".join([where, *search.passed_over]))


def _check_faults(choice: ServerChoice, search: _Search, exposed: Sequence[str]) -> Check:
    name = "known faults"
    version = search.found[0].version if search.found else PINNED.triton_version
    if version is None:
        return Check(
            name, "ok", "this tritonserver's version is unknown: see NVIDIA's security bulletins"
        )
    faults = advisories.faults(version)
    until = f"(bulletins until {advisories.catalogue().last_bulletin})"
    if not faults:
        return Check(name, "ok", f"none published for {version} {until}")
    detail = (
        f"{version} has {len(faults)} published vulnerabilities {until}: {advisories.named(faults)}"
    )
    if _native_frontend(choice):
        return _check_faults_behind_frontend(name, detail, faults, exposed)
    if not exposed:
        return Check(name, "ok", f"{detail}; only this machine can reach it")
    detail += f"; other machines can reach {', '.join(exposed)}"
    mend = "use the native frontend, 127.0.0.1, a firewall, or a newer tritonserver"
    return Check(name, "warning", detail, mend)


def _check_core_faults(search: _Search) -> Check:
    """List the faults of Triton's core that a configuration can trigger. The daemon rejects such configurations or
    warns about them.
    """
    name = "core faults"
    version = search.found[0].version if search.found else PINNED.triton_version
    found = core_faults.faults(version)
    if not found:
        return Check(name, "ok", f"none known for {version or 'this tritonserver'}")
    listed = "; ".join(f"{one.trigger}: {one.effect} ({one.source})" for one in found)
    return Check(name, "ok", f"avoid these configurations with {version}: {listed}")


def _check_faults_behind_frontend(
    name: str, detail: str, faults: Sequence[advisories.Advisory], exposed: Sequence[str]
) -> Check:
    """Check the vulnerabilities that remain with the native frontend, which replaces NVIDIA's frontends."""
    frontend = sum(one.part == "frontend" for one in faults)
    unclear = [one for one in faults if one.part == "unspecified"]
    detail += f"; {frontend} are in the frontends that the native frontend replaces"
    if not unclear:
        return Check(name, "ok", f"{detail}, so clients cannot reach them")
    detail += f"; for {len(unclear)} the bulletins do not name the affected part"
    if not exposed:
        return Check(name, "ok", f"{detail}; only this machine can reach it")
    detail += f"; other machines can reach {', '.join(exposed)}"
    mend = "restrict access to trusted clients, or upgrade tritonserver"
    return Check(name, "warning", detail, mend)


def _check_proxy(choice: ServerChoice) -> Check:
    name = "proxy"
    compiled = _compiled_proxy(choice)
    if compiled:
        return Check(name, "ok", compiled)
    detail = "no compiled proxy, and no C compiler to build it: the Python proxy is used, which is slower"
    return Check(name, "warning", detail, "install gcc or clang for the first start")


def _check_frontend(choice: ServerChoice) -> Check:
    name = "frontend"
    if choice.frontend == "triton":
        return Check(name, "ok", "NVIDIA's executable, as configured")
    native = _native_frontend(choice)
    if native:
        return Check(name, "ok", native)
    detail = "no native frontend, and no C compiler to build it: NVIDIA's executable is used, which is slower"
    status: Status = "problem" if choice.frontend == "native" else "warning"
    return Check(name, status, detail, "install gcc or clang for the first start")


def _native_frontend(choice: ServerChoice) -> str:
    """Return a remark on the availability of the native frontend; "" if NVIDIA's executable is used."""
    if choice.frontend == "triton":
        return ""
    return _comes_from(
        "the native frontend", compiled_frontend.is_built(cache_dir(choice.cache_dir))
    )


def _compiled_proxy(choice: ServerChoice) -> str:
    """Return a remark on the availability of the compiled proxy; "" if the Python proxy is used."""
    return _comes_from("the compiled proxy", compiled_proxy.is_built(cache_dir(choice.cache_dir)))


def _comes_from(what: str, is_built: bool) -> str:
    """Return a remark if a compiled program is available or will be built; "" if neither is the case."""
    if is_built:
        return f"{what} is available"
    command = compiler()
    return f"{what} will be built at the first start with {command}" if command else ""


def _library_environment(tree: ServerTree) -> dict[str, str]:
    paths = [*map(str, tree.libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(path for path in paths if path)}


def _missing_libraries(tree: ServerTree) -> str | None:
    """Name the libraries that the loader cannot find. Skip the stub, whose libpython is in the proxy's Python."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return None
    missing: set[str] = set()
    libraries = [folder / LIBRARY_NAME for _, folder in tree.python_backends[:1]]
    for file in (tree.program, *libraries):
        said = _output([ldd, str(file)], _library_environment(tree))
        missing |= {line.split()[0] for line in said.splitlines() if "=> not found" in line}
    return f"shared libraries are missing: {', '.join(sorted(missing))}" if missing else None


def _does_not_run(tree: ServerTree) -> str | None:
    if tree.binary is None:
        return None  # the check of the native frontend loads the core
        # With --help, it exits with status 1, so only its output shows whether it ran.
    said = _output([str(tree.binary), "--help"], _library_environment(tree))
    return None if "--model-repository" in said else f"it does not run: {said.strip()[-300:]}"


def _output(command: list[str], environ: dict[str, str]) -> str:
    done = run_bounded(command, timeout_s=SERVER_TIMEOUT_S, env=environ, stderr=subprocess.STDOUT)
    return done.stdout


def _check_cache(choice: ServerChoice) -> Check:
    folder = cache_dir(choice.cache_dir)
    parent = machine.nearest_existing(folder)
    free = shutil.disk_usage(parent).free
    detail = f"{folder}: {free // 1_000_000} MB free"
    mend = f"free some space, or set {CACHE_DIR_VARIABLE} to another folder"
    has_proxy = compiled_proxy.is_built(folder) or os.path.isdir(folder / "proxy-env")
    filled = has_proxy and os.path.isdir(folder / "server")
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        if filled:  # perhaps by the build of a container image
            return Check("cache", "ok", f"{folder} is complete, and read-only for this user")
        return Check("cache", "problem", f"this user cannot write to {folder}", mend)
    if free < INSTALL_BYTES and not filled:
        return Check("cache", "problem", f"{detail}, {INSTALL_BYTES // 1_000_000} MB needed", mend)
    return Check("cache", "ok", detail)


def _check_port(host: str, name: str, port: int, daemon: int | None) -> Check:
    try:
        check_port_free(host, port, name)
    except PortError as error:
        if daemon is not None and is_held_by(host, port, daemon):
            return Check(f"port {name}", "ok", f"{host}:{port} is used by the running daemon")
        mend = f"set {name} to another port, or to 0"
        if name == _LATER:
            return Check(
                f"port {name}", "warning", f"{error}; it is needed once a model uses it", mend
            )
        return Check(f"port {name}", "problem", str(error), mend)
    return Check(f"port {name}", "ok", f"{host}:{port or 'any'} is free")
