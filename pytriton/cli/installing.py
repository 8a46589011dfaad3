"""`install-server` and `doctor`: what the dispatcher knows of this machine and its tritonserver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytriton.cli.errors import CliError, say
from pytriton.ipc.exit_codes import ExitCode

if TYPE_CHECKING:
    from pytriton.dispatcher.config import DaemonConfig
    from pytriton.dispatcher.doctor_check import Check
    from pytriton.dispatcher.server_runtime import ServerChoice, ServerRuntime


def check(config: DaemonConfig) -> list[Check]:
    """Run doctor's checks for a daemon with these settings."""
    from pytriton.dispatcher.doctor import run_checks

    ports = {
        f"{name}_port": getattr(config, f"{name}_port")
        for name in ("http", "grpc", "metrics")
        if getattr(config, f"allow_{name}")
    }
    rundir = config.rundir
    if rundir.running_pid() is not None:
        say("a daemon runs in this runtime directory, so its ports are in use by it")
    return run_checks(
        _choice(config), host=config.http_address, ports=ports, runtime_dir=rundir.path
    )


def install(config: DaemonConfig, wheel: Path | None, python_backend: bool) -> ServerRuntime:
    """Find or fetch tritonserver, from `wheel` if one is given, and what its proxy needs.

    Raises:
        CliError: it cannot be had; says why and what mends it.
    """
    from pytriton.dispatcher.cache import ServerRuntimeError
    from pytriton.dispatcher.server_runtime import find_or_install_server

    if wheel is not None and not wheel.expanduser().is_file():
        raise CliError(ExitCode.USAGE, f"--wheel names {wheel}, and there is no such file")
    try:
        return find_or_install_server(_choice(config, wheel, python_backend), say)
    except ServerRuntimeError as error:
        raise CliError(ExitCode.NO_SERVER, str(error)) from None


def _choice(
    config: DaemonConfig, wheel: Path | None = None, python_backend: bool = False
) -> ServerChoice:
    from pytriton.dispatcher.server_runtime import ServerChoice

    def path(setting: str | None) -> Path | None:
        return None if setting is None else Path(setting)

    return ServerChoice(
        tritonserver=path(config.tritonserver),
        proxy_python=path(config.proxy_python),
        wheel=wheel,
        cache_dir=path(config.cache_dir),
        proxy=config.proxy,
        python_backend=python_backend,
    )
