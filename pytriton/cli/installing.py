"""`install-server` and `doctor`: what the dispatcher knows of this machine and its tritonserver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytriton.cli.errors import CliError, say
from pytriton.ipc.exit_codes import ExitCode

if TYPE_CHECKING:
    from pytriton.dispatcher.doctor.diagnosis import Check
    from pytriton.dispatcher.settings.declarations import DaemonConfig


def check(config: DaemonConfig) -> list[Check]:
    """Run doctor's checks for a daemon with these settings."""
    from pytriton.dispatcher.doctor.diagnosis import checks_for

    return checks_for(config)


def install(config: DaemonConfig, wheel: Path | None, python_backend: bool) -> list[str]:
    """Find or fetch tritonserver, from `wheel` if one is given, and what its proxy needs; return what is there.

    Raises:
        CliError: it cannot be had; says why and what mends it.
    """
    from pytriton.dispatcher.install.server_runtime import (
        ServerRuntimeError,
        choice_of,
        find_or_install_server,
    )

    if wheel is not None and not wheel.expanduser().is_file():
        raise CliError(ExitCode.USAGE, f"--wheel names {wheel}, and there is no such file")
    try:
        choice = choice_of(config, wheel, python_backend=python_backend)
        runtime = find_or_install_server(choice, say)
    except ServerRuntimeError as error:
        raise CliError(ExitCode.NO_SERVER, str(error)) from None
    there = {"tritonserver": runtime.tree.program, "proxy": runtime.native or "Python"}
    if runtime.python is not None:
        there["proxy Python"] = runtime.python.environment.python
    return [f"{what}: {where}" for what, where in there.items()]
