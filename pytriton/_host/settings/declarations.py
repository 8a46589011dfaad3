"""All settings of the daemon: here, in server_settings.py, front_settings.py, openai_settings.py and place_settings.py.

Flags, environment variables, keys of `pytriton-daemon.toml` and docs/reference/configuration.md are derived from
`DaemonConfig`. sources.py reads the values that users set. The daemon process receives the result as one object.
"""

from __future__ import annotations

import typing
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Optional

import msgspec

from pytriton._host.settings import parsing as values
from pytriton._host.settings.combinations import contradictions
from pytriton._host.settings.option import SECONDS, Option
from pytriton._host.settings.server_settings import ServerSettings
from pytriton._protocol.files.rundir import RuntimeDir, default_state_dir

#: Prefix of the environment variables: the prefix and the setting's name in capitals.
ENV_PREFIX = "PYTRITON_DAEMON_"
#: Not a setting: the id of a process. Every daemon started below it exits when that process exits (owner.py).
ENV_OWNER = f"{ENV_PREFIX}OWNER"


class ConfigError(Exception):
    """Invalid settings. The text names each source, key, value and the allowed values."""


class DaemonConfig(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The validated settings of one daemon. Units: `_s` is seconds, `_size` is bytes.

    Raises:
        ValueError: a value is not allowed, or two values contradict each other.
    """

    # ── starting, stopping, restarting ───────────────────────────────────────────────────────────
    server_start_timeout_s: Annotated[
        float, Option("Time tritonserver may take to start, in seconds.", SECONDS)
    ] = 60.0
    ready_when: Annotated[
        str,
        Option(
            "When tritonserver reports ready (/v2/health/ready) after each of its starts. `served`: once all "
            "previously registered models and all models of model_repository are loaded. `tried`: once each of them "
            "has been loaded or has failed to load. `up`: as soon as models can be registered.",
            values.choice("served", "tried", "up"),
        ),
    ] = "served"
    server_probe_interval_s: Annotated[
        float,
        Option(
            "Interval between tritonserver liveness probes, in seconds. 0 disables probing.",
            SECONDS,
        ),
    ] = 5.0
    server_probe_timeout_s: Annotated[
        float,
        Option(
            "Time without any answered liveness probe after which tritonserver counts as hung, in seconds. The daemon "
            "then kills and restarts it.",
            SECONDS,
        ),
    ] = 10.0
    server_restart_limit: Annotated[
        Optional[int],
        Option(
            "Maximum number of consecutive restarts after tritonserver has exited by itself. Beyond it the daemon exits "
            "with code 6, so that its service manager notices. 0 disables restarts. Default: no limit, with an "
            "increasing delay.",
            values.optional(values.integer(0)),
        ),
    ] = None
    server_backoff_max_s: Annotated[
        float,
        Option(
            "Maximum delay before a tritonserver restart, in seconds. The first restart in a row is immediate, the "
            "second comes after 0.5 s, and the delay doubles from there. gRPC clients give up on a connection that is "
            "not accepted within 20 s: with a longer delay their calls fail, while HTTP clients wait.",
            SECONDS,
        ),
    ] = 10.0
    worker_start_timeout_s: Annotated[
        float,
        Option(
            "Time a worker process may take to start, in seconds. Loading the model is not included.",
            SECONDS,
        ),
    ] = 60.0
    busy_timeout_s: Annotated[
        float,
        Option(
            "Time that register, scale and rollback wait for a starting tritonserver or a model that is being restored, "
            "in seconds. After that they are refused.",
            SECONDS,
        ),
    ] = 600.0
    retire_timeout_s: Annotated[
        float,
        Option(
            "Time a replaced tritonserver (`restart --server`) may take to finish its requests and streams, in seconds. "
            "`status` lists it until then.",
            SECONDS,
        ),
    ] = 3600.0
    grace_period_s: Annotated[
        float,
        Option("Time to wait for in-flight batches at shutdown, in seconds.", SECONDS),
    ] = 30.0
    worker_restart_limit: Annotated[
        Optional[int],
        Option(
            "Maximum number of consecutive replacements of a worker that exits by itself or fails to load its model. "
            "Beyond it the daemon stops replacing that worker. 0 disables replacement. Default: no limit, with delays of "
            "up to worker_backoff_max_s. Exits caused by a batch do not count.",
            values.optional(values.integer(0)),
        ),
    ] = None
    worker_backoff_s: Annotated[
        float,
        Option(
            "Delay before the second consecutive replacement of a worker, in seconds. The first one is immediate, and "
            "the delay doubles from there.",
            SECONDS,
        ),
    ] = 0.5
    worker_backoff_max_s: Annotated[
        float, Option("Maximum delay before a worker is replaced, in seconds.", SECONDS)
    ] = 30.0

    unready_after_s: Annotated[
        float,
        Option(
            "Time a model may be without a worker before tritonserver reports it as not ready, in seconds. Its requests "
            "are then refused immediately, until it has a worker again.",
            SECONDS,
        ),
    ] = 5.0

    wake_timeout_s: Annotated[
        float,
        Option(
            "Time that requests wait for the worker of a suspended model, in seconds, counted from the first of them. "
            "Later requests are refused until the worker is ready. With the native frontend, requests also wait this long "
            "for a model that is being restored after a start of the daemon.",
            SECONDS,
        ),
    ] = 60.0
    wake_queue_size: Annotated[
        int,
        Option(
            "Maximum number of requests queued in tritonserver for a suspended model. Beyond it, the oldest are refused.",
            values.integer(0),
        ),
    ] = 1000

    parked_workers: Annotated[
        int,
        Option(
            "Number of suspended models, most recently suspended first, that keep a started worker process without the "
            "model. Their next request waits only for the model to load. Each process takes about 30 MB. 0 keeps none.",
            values.integer(0),
        ),
    ] = 4

    fork_servers: Annotated[
        int,
        Option(
            "Number of environments (interpreter and variables), most recently used first, for which the daemon keeps a "
            "fork server: a process with all worker imports done. Forking a worker takes about 10 ms of CPU time, starting "
            "an interpreter 200 ms. A fork server takes about 20 MB and exits after ten idle minutes. 0 starts an "
            "interpreter for every worker.",
            values.integer(0),
        ),
    ] = 4

    memory_budget: Annotated[
        Optional[str],
        Option(
            "Memory that the workers of all models may use together: bytes, such as 8GiB, or a share of the memory of the "
            "machine or its control group, such as 60%. A model that does not fit waits until enough idle models are "
            "suspended (those with min=0, lazy ones, or any with any_may_sleep). A model that can "
            "never fit is refused. Default: no limit.",
            values.optional(values.budget()),
        ),
    ] = None
    gpu_memory_budget: Annotated[
        Optional[str],
        Option(
            "Memory that workers may use on each GPU, for models with `devices`: bytes, or a share of the GPU's memory. "
            "Default: no limit.",
            values.optional(values.budget()),
        ),
    ] = None
    any_may_sleep: Annotated[
        bool,
        Option(
            "Allow any idle model to be suspended to make room for another one. By default only models with min=0 and "
            "lazy models are. Needs a memory budget.",
            values.boolean(),
        ),
    ] = False

    # ── logs ─────────────────────────────────────────────────────────────────────────────────────
    log_format: Annotated[
        str,
        Option(
            "Log format on standard error. plain prints the output of models and tritonserver without labels, and the rest "
            "as console. none prints nothing. auto is console on a terminal and in systemd's journal, json otherwise. Log "
            "files are always JSON lines.",
            values.choice("auto", "console", "json", "none", "plain"),
        ),
    ] = "auto"
    log_level: Annotated[
        str,
        Option("Minimum log level.", values.choice("debug", "info", "warning", "error")),
    ] = "info"
    log_file_size: Annotated[
        int,
        Option("Size in bytes at which a log file is rotated. 0 disables rotation.", values.size()),
    ] = 10_000_000
    log_file_backups: Annotated[
        int, Option("Number of rotated files to keep of each log.", values.integer(1, 1000))
    ] = 3

    event_log_size: Annotated[
        int,
        Option(
            "Maximum size in bytes of the event log in the state directory (`explain`, `events`). The oldest events are "
            "dropped first. 0 keeps events in memory only.",
            values.size(),
        ),
    ] = 8_000_000

    webhooks: Annotated[
        Optional[str],
        Option(
            "TOML file with the webhooks that receive signed events. Default: none.",
            values.optional(values.path()),
        ),
    ] = None

    def __post_init__(self) -> None:
        for name, option in options().items():
            option.check(name, getattr(self, name))
        problems = contradictions(self)
        if problems:
            raise ValueError("; ".join(problems))

    def __repr__(self) -> str:
        shown = (
            f"{name}={'***' if option.kind.is_secret else repr(getattr(self, name))}"
            for name, option in options().items()
        )
        return f"DaemonConfig({', '.join(shown)})"

    @property
    def rundir(self) -> RuntimeDir:
        """The runtime directory with the paths inside."""
        return RuntimeDir(Path(self.runtime_dir))

    @property
    def state_path(self) -> Path:
        """The state directory."""
        if self.ephemeral:
            return self.rundir.path / "ephemeral"
        if self.state_dir is not None:
            return Path(self.state_dir)
        return default_state_dir(self.rundir.path)

    def to_json(self) -> bytes:
        """Return the settings as JSON, for `from_json` in another process."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> DaemonConfig:
        """Return the settings in `data`.

        Raises:
            ConfigError: `data` was not written by `to_json`.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        # msgspec does not wrap Python's own errors for invalid UTF-8 and too deep nesting.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"the daemon received settings that it cannot read: {error}"
            ) from error


@lru_cache(maxsize=1)
def options() -> dict[str, Option]:
    """Return the settings by name, in the order of their declaration."""
    hints: dict[str, Any] = typing.get_type_hints(DaemonConfig, include_extras=True)
    return {
        name: option
        for name in DaemonConfig.__struct_fields__
        for option in hints[name].__metadata__
        if isinstance(option, Option)
    }


def present_name(name: str) -> str:
    """Return a setting's current name if `name` is a former one, else `name`."""
    return next((now for now, option in options().items() if option.formerly == name), name)


def former_names() -> list[str]:
    """Return the former names of settings, which are still read."""
    return [option.formerly for option in options().values() if option.formerly]


def env_name(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def flag_name(name: str) -> str:
    """Return the command-line flag of a setting."""
    return "--triton-option" if name == "tritonserver_options" else f"--{name.replace('_', '-')}"
