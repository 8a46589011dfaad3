"""Command-line flags generated from the daemon's settings, and loading the settings from all sources."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from pytriton._cli.errors import CliError
from pytriton._cli.output import say
from pytriton._cli.typer_adapter import resolved_parameters, show_parameters
from pytriton._host.settings import start_flags
from pytriton._host.settings.declarations import ConfigError, DaemonConfig, flag_name, options
from pytriton._host.settings.sources import LoadedSettings, load
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir, RuntimeDirError


def load_settings(flags: StartFlags) -> LoadedSettings:
    """Load the settings from all sources; raise CliError if they are invalid."""
    try:
        return load(flags.flags, os.environ, Path(flags.cwd), flags.config)
    except ConfigError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None


def load_to_serve(flags: StartFlags) -> LoadedSettings:
    """Load the settings of a daemon to run on this machine; also check that its model repositories can be read."""
    loaded = load_settings(flags)
    _check_repositories(loaded)
    return loaded


def _check_repositories(loaded: LoadedSettings) -> None:
    """Raise CliError if a local model repository cannot be read, because none of its models would be served."""
    for place in loaded.config.model_repository:
        if "://" in place:  # tritonserver accesses it itself
            continue
        try:
            os.listdir(place)
        except OSError as error:
            source = loaded.sources.get("model_repository", "default")
            raise CliError(
                ExitCode.USAGE,
                f"model_repository: {place} cannot be read: {error.strerror} ({source}). Use a directory that has a "
                "subdirectory for each model",
            ) from None


def save_flags(flags: StartFlags, rundir: RuntimeDir) -> None:
    """Save the flags for `restart`, with absolute paths. Report a failure, but continue."""
    absolute = flags.absolute()
    try:
        replace(absolute, cwd=str(Path.cwd() / absolute.cwd)).write(rundir)
    except OSError as error:
        say(f"pytriton-daemon: cannot save the flags for `restart`: {error}")


def saved_flags(rundir: RuntimeDir) -> StartFlags:
    """Return the flags of the last start in a runtime directory; empty flags if none were saved."""
    try:
        return start_flags.read(rundir) or StartFlags({})
    except ConfigError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None


def private(config: DaemonConfig) -> RuntimeDir:
    """Create the runtime directory, private to this user, and return it. Raise CliError if that fails.

    Also remove an access token from the command line of this process, where other users could see it.
    """
    from pytriton.dispatcher.start import hide_token

    hide_token(config)
    try:
        config.rundir.create(config.control_group)
    except RuntimeDirError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None
    return config.rundir


#: The settings that the help lists first, in this order.
FIRST = (
    "runtime_dir", "http_port", "grpc_port", "metrics_port", "http_address", "grpc_address",
    "metrics_address", "model_repository", "model_control_mode", "load_model", "model_python",
    "state_dir", "ephemeral", "cache_dir", "tritonserver", "tritonserver_options",
    "response_cache_size", "grace_period_s", "log_level", "log_format",
)  # fmt: skip


def with_setting_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for each setting to a command. The command's function gets the given flags in `flags: dict[str, Any]`."""

    def run(**arguments: Any) -> None:
        flags = {
            name: arguments.pop(name) for name in options() if arguments[name] not in (None, [])
        }
        function(flags=flags, **{k: v for k, v in arguments.items() if k not in options()})

    own = [parameter for parameter in resolved_parameters(function) if parameter.name != "flags"]
    given = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name)
        )
        for name in [*FIRST, *(name for name in options() if name not in FIRST)]
    ]
    show_parameters(run, [*own, *given])
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def _annotation(name: str) -> Any:
    """Return typer's annotation for the flag of a setting. Its value remains text, which the setting's validator parses."""
    option = options()[name]
    flag, text = flag_name(name), option.help
    if option.kind.is_switch:
        off = f"--no-{flag[2:]}"
        return Annotated[
            Optional[bool], typer.Option(f"{flag}/{off}", help=text, rich_help_panel=_panel(name))
        ]
    if name == "tritonserver_options":
        several = typer.Option(flag, help=text, metavar="NAME=VALUE", rich_help_panel=_panel(name))
        return Annotated[Optional[list[str]], several]
    metavar = "PATH" if option.kind.is_path else "VALUE"
    taken = typer.Option(flag, help=text, metavar=metavar, rich_help_panel=_panel(name))
    return Annotated[Optional[list[str]] if option.kind.is_list else Optional[str], taken]


def _panel(name: str) -> str:
    """Return the section of the help in which a setting is listed."""
    return "Common settings" if name in FIRST else "All other settings"
