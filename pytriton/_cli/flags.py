"""Flags and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

__all__ = [
    "ConfigFlag",
    "InstancesFlag",
    "JsonFlag",
    "ModelArgument",
    "PythonFlag",
    "RuntimeDirFlag",
    "print_version_and_exit",
    "served_models",
]


def served_models(incomplete: str) -> list[str]:
    """Return model names for shell completion, from the daemon in the default runtime directory."""
    from pytriton._cli import daemon_connection
    from pytriton._cli.errors import CliError

    try:
        models = daemon_connection.ask_models(daemon_connection.runtime_dir(None))
    except CliError:  # no daemon is running: nothing to complete
        return []
    return [one.name for one in models if one.name.startswith(incomplete)]


RuntimeDirFlag = Annotated[
    Optional[Path],
    typer.Option("--runtime-dir", metavar="PATH", help="Runtime directory of the daemon."),
]
ConfigFlag = Annotated[
    Optional[str], typer.Option("--config", metavar="FILE", help="Settings file to read.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
InstancesFlag = Annotated[
    Optional[str], typer.Option(help="Number of workers. 1:8 scales from 1 to 8 with the load.")
]
PythonFlag = Annotated[
    Optional[str],
    typer.Option(help="Interpreter of the workers, or an environment's directory or archive."),
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", autocompletion=served_models)]


def print_version_and_exit(wanted: bool) -> None:
    """Print the version and exit if `--version` is given."""
    if wanted:
        from pytriton._cli.version import print_version

        raise typer.Exit(print_version())
