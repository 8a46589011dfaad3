"""Reloads the settings while the daemon runs: some apply immediately, the others are reported."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import structlog

from pytriton._host.settings import start_flags
from pytriton._host.settings.declarations import ConfigError, DaemonConfig, options
from pytriton._host.settings.frontend_choice import only_triton
from pytriton._host.settings.sources import load
from pytriton._protocol import messages
from pytriton._protocol.files.rundir import RuntimeDir

_log = structlog.get_logger(__name__)


def settings_for_replacement(config: DaemonConfig, rundir: RuntimeDir) -> DaemonConfig:
    """Return the settings for a replacement tritonserver: the current ones, with the settings for tritonserver reloaded.

    If no command started the daemon, its flags are unknown, and the current settings are returned.

    Raises:
        ConfigError: the settings are invalid.
    """
    if start_flags.read(rundir) is None:
        return config
    wanted = _load(rundir)
    changed = {
        name: getattr(wanted, name)
        for name, option in options().items()
        if option.of_server and getattr(config, name) != getattr(wanted, name)
    }
    if changed:
        _log.info("tritonserver settings changed", settings=list(changed))
    merged = msgspec.structs.replace(config, **changed)
    missing = only_triton(merged)
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} in tritonserver_options: not supported by the running native frontend; "
            "use `pytriton-daemon restart`, which switches to NVIDIA's frontend"
        )
    return merged


def reload_settings(
    config: DaemonConfig, rundir: RuntimeDir
) -> tuple[DaemonConfig, messages.Reloaded]:
    """Read the settings from all sources again, with the flags that were given to `start`.

    Returns:
        The settings now in effect, and the report for the client. Invalid settings change nothing and are reported
        as `problem`. Environment variables are those with which this process was started.
    """
    try:
        wanted = _load(rundir)
    except ConfigError as error:
        return config, messages.Reloaded([], [], str(error))
    changed = [
        name
        for name in options()
        if getattr(config, name) != getattr(wanted, name)
        # A detached daemon's is always "none", see _cli/launch.py.
        and not (name == "log_format" and config.log_format == "none")
        # Generated at startup if the settings contain none.
        and not (name == "access_token" and wanted.access_token is None)
    ]
    applied = [name for name in changed if options()[name].live]
    waiting = [name for name in changed if not options()[name].live]
    merged = msgspec.structs.replace(config, **{name: getattr(wanted, name) for name in applied})
    return merged, messages.Reloaded(applied, waiting)


def _load(rundir: RuntimeDir) -> DaemonConfig:
    saved = start_flags.read(rundir)
    if saved is None:
        raise ConfigError(
            f"{start_flags.path(rundir)} does not exist: this daemon was not started by "
            "`pytriton-daemon start`, so its flags are not known"
        )
    # A running daemon cannot change its runtime directory.
    flags = {**saved.flags, "runtime_dir": str(rundir.path)}
    return load(flags, os.environ, Path(saved.cwd), saved.config).config
