"""All settings of the daemon: here, in server_settings.py, frontend_settings.py, openai_settings.py and place_settings.py.

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
    readiness: Annotated[
        str,
        Option(
            "When /v2/health/ready succeeds after a start of tritonserver. `all_loaded`: all persisted models and all "
            "models of model_repository are loaded. `all_attempted`: each of them is loaded or has failed to load. `server_up`: "
            "models can be registered.",
            values.choice("all_loaded", "all_attempted", "server_up"),
        ),
    ] = "all_loaded"
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
            "Time without a successful liveness probe after which tritonserver is killed and restarted, in seconds.",
            SECONDS,
        ),
    ] = 10.0
    server_restart_limit: Annotated[
        Optional[int],
        Option(
            "Maximum number of consecutive restarts after unexpected exits of tritonserver. After that, the daemon "
            "exits with code 6. 0 disables restarts. Default: no limit.",
            values.optional(values.integer(0)),
        ),
    ] = None
    server_backoff_max_s: Annotated[
        float,
        Option(
            "Maximum delay before a tritonserver restart, in seconds. The first restart is immediate, the second "
            "after 0.5 s, then the delay doubles. Calls of gRPC clients fail if the delay exceeds 20 s.",
            SECONDS,
        ),
    ] = 10.0
    worker_start_timeout_s: Annotated[
        float,
        Option(
            "Time a worker process may take to start, in seconds, not including the loading of the model.",
            SECONDS,
        ),
    ] = 60.0
    server_wait_timeout_s: Annotated[
        float,
        Option(
            "Time that register, scale and rollback wait for a starting tritonserver or a model that is being "
            "restored, in seconds.",
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
            "Maximum number of consecutive restarts of a worker that exits unexpectedly or fails to load its model; "
            "exits caused by a batch do not count. 0 disables restarts. Default: no limit.",
            values.optional(values.integer(0)),
        ),
    ] = None
    worker_backoff_s: Annotated[
        float,
        Option(
            "Delay before the second consecutive restart of a worker, in seconds. The first is immediate; after the "
            "second, the delay doubles.",
            SECONDS,
        ),
    ] = 0.5
    worker_backoff_max_s: Annotated[
        float, Option("Maximum delay before a worker restart, in seconds.", SECONDS)
    ] = 30.0

    not_ready_after_s: Annotated[
        float,
        Option(
            "Time a model may be without a worker before it is reported as not ready and its requests fail "
            "immediately, in seconds.",
            SECONDS,
        ),
    ] = 5.0

    resume_timeout_s: Annotated[
        float,
        Option(
            "Time that requests wait for a suspended model to resume, in seconds from the first request. Requests "
            "fail after that, until the model is ready. With the native frontend, requests also wait this long for "
            "models that are being restored.",
            SECONDS,
        ),
    ] = 60.0
    resume_queue_size: Annotated[
        int,
        Option(
            "Maximum number of requests queued for a suspended model. Beyond it, the oldest fail.",
            values.integer(0),
        ),
    ] = 1000

    prestarted_workers: Annotated[
        int,
        Option(
            "Number of suspended models for which a worker process (about 30 MB) stays running without the model, "
            "so that resuming takes only the load. The most recently suspended ones are chosen.",
            values.integer(0),
        ),
    ] = 4

    max_fork_servers: Annotated[
        int,
        Option(
            "Maximum number of fork servers, one for each environment (interpreter and variables) of workers. A "
            "fork server (about 20 MB) starts a worker in 10 ms of CPU time instead of 200 ms, and exits after ten "
            "idle minutes. 0 starts an interpreter for each worker.",
            values.integer(0),
        ),
    ] = 4

    memory_budget: Annotated[
        Optional[str],
        Option(
            "Memory that all workers may use together, in bytes or as a share of the memory of the machine or its "
            "control group. A model that does not fit waits until enough idle models are suspended (those with "
            "min=0, lazy ones, or any with suspend_any_idle_model). A model that can never fit is refused. Default: no limit.",
            values.optional(values.budget()),
        ),
    ] = None
    gpu_memory_budget: Annotated[
        Optional[str],
        Option(
            "Memory that workers may use on each GPU, for models with `devices`, in bytes or as a share of the "
            "GPU's memory. Default: no limit.",
            values.optional(values.budget()),
        ),
    ] = None
    suspend_any_idle_model: Annotated[
        bool,
        Option(
            "Allow any idle model to be suspended to make room for another, not only lazy ones and those with "
            "min=0. Needs a memory budget.",
            values.boolean(),
        ),
    ] = False

    # ── logs ─────────────────────────────────────────────────────────────────────────────────────
    log_format: Annotated[
        str,
        Option(
            "Log format on standard error. auto: console on a terminal and in systemd's journal, json otherwise. "
            "plain: like console, without labels on the output of models and tritonserver. none: no output. Log "
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
        Option(
            "Size at which a log file is rotated, in bytes. 0 disables rotation.", values.size()
        ),
    ] = 10_000_000
    log_file_backups: Annotated[
        int, Option("Number of rotated files to keep of each log.", values.integer(1, 1000))
    ] = 3

    event_log_size: Annotated[
        int,
        Option(
            "Maximum size of the event log in the state directory, in bytes. The oldest events are dropped first. 0 "
            "keeps events in memory only.",
            values.size(),
        ),
    ] = 8_000_000

    webhooks: Annotated[
        Optional[str],
        Option(
            "TOML file with the webhooks that receive signed events.",
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


def env_name(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def flag_name(name: str) -> str:
    """Return the command-line flag of a setting."""
    return "--triton-option" if name == "tritonserver_options" else f"--{name.replace('_', '-')}"
