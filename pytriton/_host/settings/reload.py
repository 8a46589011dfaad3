"""Reading the settings anew while the daemon runs: some apply at once, the rest is reported."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import structlog

from pytriton._host.settings import start_flags
from pytriton._host.settings.declarations import ConfigError, DaemonConfig, options
from pytriton._host.settings.front_choice import only_triton
from pytriton._host.settings.sources import load
from pytriton._protocol import messages
from pytriton._protocol.files.rundir import RuntimeDir

_log = structlog.get_logger(__name__)

#: Settings that a running daemon takes over; those of workers hold for models registered from then
#: on. All others are told to tritonserver or to the file system once, at the start.
LIVE = frozenset(
    {
        "grace_period_s",
        "log_level",
        "worker_backoff_max_s",
        "worker_backoff_s",
        "worker_restart_limit",
        "worker_start_timeout_s",
    }
)
#: Settings that another tritonserver is started with when it takes the place of one that runs. Ports, addresses and
#: sockets are not among them: the daemon has these, and hands them on.
OF_SERVER = frozenset(
    {
        "allow_client_shm",
        "front_limit",
        "front_loops",
        "grace_period_s",
        "http_certificate",
        "http_client_authorities",
        "http_key",
        "response_cache_size",
        "retire_timeout_s",
        "restricted_endpoints",
        "server_probe_interval_s",
        "server_probe_timeout_s",
        "server_start_timeout_s",
        "tritonserver_options",
    }
)


def for_another_server(config: DaemonConfig, rundir: RuntimeDir) -> DaemonConfig:
    """Return the settings that another tritonserver is to have: those that hold, with what has changed of OF_SERVER.

    Those of a daemon stay that was not started by a command, since its flags are not known.

    Raises:
        ConfigError: the settings are wrong.
    """
    if start_flags.read(rundir) is None:
        return config
    wanted = _load(rundir)
    changed = {
        name: getattr(wanted, name)
        for name in sorted(OF_SERVER)
        if getattr(config, name) != getattr(wanted, name)
    }
    if changed:
        _log.info("another tritonserver gets other settings", settings=list(changed))
    merged = msgspec.structs.replace(config, **changed)
    missing = only_triton(merged)
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} of tritonserver_options: the native front, which serves now, has no such; "
            "pytriton-daemon restart starts NVIDIA's"
        )
    return merged


def reread(config: DaemonConfig, rundir: RuntimeDir) -> tuple[DaemonConfig, messages.Reloaded]:
    """Read all sources again, with the flags of the start.

    Returns:
        The settings that hold now, and what is to be told of it. Wrong settings change nothing and
        are the `problem`. The environment is the one that this process was started with: nobody
        can change that from outside.
    """
    try:
        wanted = _load(rundir)
    except ConfigError as error:
        return config, messages.Reloaded([], [], str(error))
    changed = [
        name
        for name in options()
        if getattr(config, name) != getattr(wanted, name)
        # A detached daemon's is "none" whatever the settings say, see cli/launch.py.
        and not (name == "log_format" and config.log_format == "none")
        # Made at the start, where the settings name none.
        and not (name == "access_token" and wanted.access_token is None)
    ]
    applied = [name for name in changed if name in LIVE]
    waiting = [name for name in changed if name not in LIVE]
    merged = msgspec.structs.replace(config, **{name: getattr(wanted, name) for name in applied})
    return merged, messages.Reloaded(applied, waiting)


def _load(rundir: RuntimeDir) -> DaemonConfig:
    kept = start_flags.read(rundir)
    if kept is None:
        raise ConfigError(
            f"there is no {start_flags.path(rundir)}: this daemon was not started by "
            "`pytriton-daemon start`, so its flags are not known"
        )
    # The directory was settled at the start; whoever is in it cannot move.
    flags = {**kept.flags, "runtime_dir": str(rundir.path)}
    return load(flags, os.environ, Path(kept.cwd), kept.config).config
