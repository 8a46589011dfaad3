"""Every setting of the daemon, declared once: here, in server_settings.py, front_settings.py and place_settings.py.

Flags, environment variables, keys of `pytriton-daemon.toml` and docs/reference/configuration.md are all made
of `DaemonConfig`; sources.py reads what people set. The daemon process gets the result as one
object.
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

#: An environment variable is this and the setting's name in capitals.
ENV_PREFIX = "PYTRITON_DAEMON_"
#: No setting: names a process that every daemon started below it lives for (owner.py).
ENV_OWNER = f"{ENV_PREFIX}OWNER"


class ConfigError(Exception):
    """Settings that cannot be used; the text names each source, key, value and what is allowed."""


class DaemonConfig(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one daemon, checked. Units: `_s` is seconds, `_size` is bytes.

    Raises:
        ValueError: a value is not allowed, or two of them contradict each other.
    """

    # ── starting, stopping, restarting ───────────────────────────────────────────────────────────
    server_start_timeout_s: Annotated[
        float, Option("Seconds tritonserver may take to start.", SECONDS)
    ] = 60.0
    ready_when: Annotated[
        str,
        Option(
            "When tritonserver says that it is ready (/v2/health/ready), after each of its starts. `served`: when all "
            "models are served that were registered before or that model_repository is to serve. `tried`: also "
            "when some of them could not be. `up`: as soon as models can be registered.",
            values.choice("served", "tried", "up"),
        ),
    ] = "served"
    server_probe_interval_s: Annotated[
        float,
        Option(
            "Seconds from one look whether tritonserver still answers to the next; 0: never.",
            SECONDS,
        ),
    ] = 5.0
    server_probe_timeout_s: Annotated[
        float,
        Option(
            "Seconds that tritonserver may leave every such question unanswered before it counts "
            "as hung, and is killed and started again.",
            SECONDS,
        ),
    ] = 10.0
    server_restart_limit: Annotated[
        Optional[int],
        Option(
            "How many times in a row the daemon starts a tritonserver again that ended by itself. Then the daemon "
            "ends with code 6, for its service manager to see; 0: never started again. Default: no limit, with "
            "growing pauses.",
            values.optional(values.integer(0)),
        ),
    ] = None
    server_backoff_max_s: Annotated[
        float,
        Option(
            "The most seconds before tritonserver is started again. The first time in a row it is started at "
            "once, then after 0.5 s, and each further pause is twice as long. Clients of gRPC give up a connection "
            "that nobody answers within 20 s: with longer pauses their calls fail, where those of HTTP wait.",
            SECONDS,
        ),
    ] = 10.0
    worker_start_timeout_s: Annotated[
        float, Option("Seconds a worker may take to start, before it loads its model.", SECONDS)
    ] = 60.0
    busy_timeout_s: Annotated[
        float,
        Option(
            "Seconds that register, scale and rollback wait while tritonserver is being started, or the model "
            "is being restored, before they are refused.",
            SECONDS,
        ),
    ] = 600.0
    retire_timeout_s: Annotated[
        float,
        Option(
            "Seconds that a tritonserver which was replaced (`restart --server`) may go on with requests and streams "
            "that it had begun. `status` shows it until then.",
            SECONDS,
        ),
    ] = 3600.0
    grace_period_s: Annotated[
        float, Option("Seconds that a stop waits for the batches at hand.", SECONDS)
    ] = 30.0
    worker_restart_limit: Annotated[
        Optional[int],
        Option(
            "How many times in a row a worker that ended by itself, or could not be loaded, is "
            "replaced before its instance is given up; 0: never. Not set: for ever, with pauses of "
            "worker_backoff_max_s at most. A worker that a batch has ended does not count.",
            values.optional(values.integer(0)),
        ),
    ] = None
    worker_backoff_s: Annotated[
        float,
        Option(
            "Seconds before a worker's second replacement in a row; the first comes at once, each "
            "further one waits twice as long.",
            SECONDS,
        ),
    ] = 0.5
    worker_backoff_max_s: Annotated[
        float, Option("The most seconds before a worker's replacement.", SECONDS)
    ] = 30.0

    unready_after_s: Annotated[
        float,
        Option(
            "Seconds that a model may be without a worker before tritonserver says that it is not "
            "ready and refuses its requests at once, until a worker is back.",
            SECONDS,
        ),
    ] = 5.0

    wake_timeout_s: Annotated[
        float,
        Option(
            "Seconds that requests wait for the worker of a model that was asleep, from the first of them on; "
            "later ones are refused until the worker is ready. And that each waits for a model that the daemon is "
            "about to serve again after its start (native front).",
            SECONDS,
        ),
    ] = 60.0
    wake_queue_size: Annotated[
        int,
        Option(
            "Requests that may wait in tritonserver's queue for a model that was asleep; those that have waited "
            "longest are refused when there are more.",
            values.integer(0),
        ),
    ] = 1000

    parked_workers: Annotated[
        int,
        Option(
            "Models that sleep and keep a started worker process without the model, those that fell asleep last: the "
            "next request waits for the load of the model alone. Each takes some 30 MB; 0: none.",
            values.integer(0),
        ),
    ] = 4

    fork_servers: Annotated[
        int,
        Option(
            "Environments (interpreter, variables) of which a process is kept, those used last. It has "
            "imported what every worker imports, and further workers are forks of it: some 10 ms of CPU time instead "
            "of 200. It takes some 20 MB, and ends after ten minutes without use. 0: every worker starts an "
            "interpreter.",
            values.integer(0),
        ),
    ] = 4

    memory_budget: Annotated[
        Optional[str],
        Option(
            "The memory that the workers of all models may take together. It is bytes, such as 8GiB, or a share of "
            "what the machine or its control group has, such as 60%. A model that has to load while there is "
            "no room waits until idle ones sleep that may (min=0, lazy, or any_may_sleep). Where these "
            "never have as much, it is refused. "
            "Default: no limit.",
            values.optional(values.budget()),
        ),
    ] = None
    gpu_memory_budget: Annotated[
        Optional[str],
        Option(
            "The same of the memory of each GPU, for models with `devices`: bytes, or a share of what the GPU has.",
            values.optional(values.budget()),
        ),
    ] = None
    any_may_sleep: Annotated[
        bool,
        Option(
            "With a budget: any idle model may sleep for another one, not only those with min=0 and lazy ones.",
            values.boolean(),
        ),
    ] = False

    # ── logs ─────────────────────────────────────────────────────────────────────────────────────
    log_format: Annotated[
        str,
        Option(
            "Form of the log on standard error: console, json, none, plain (what models and "
            "tritonserver print without labels, the rest as console), or auto: console on a "
            "terminal and in systemd's journal, else json. The log files are JSON lines always.",
            values.choice("auto", "console", "json", "none", "plain"),
        ),
    ] = "auto"
    log_level: Annotated[
        str,
        Option("Least level that is logged.", values.choice("debug", "info", "warning", "error")),
    ] = "info"
    log_file_size: Annotated[
        int, Option("Bytes after which a log file is rotated; 0: never.", values.size())
    ] = 10_000_000
    log_file_backups: Annotated[
        int, Option("Rotated log files that are kept of each log.", values.integer(1, 1000))
    ] = 3

    event_log_size: Annotated[
        int,
        Option(
            "Bytes of the event log in the state directory (`explain`, `events`); older events make room. 0: events "
            "are kept in memory alone.",
            values.size(),
        ),
    ] = 8_000_000

    webhooks: Annotated[
        Optional[str],
        Option(
            "A TOML file of addresses to which events are posted, signed. Default: none.",
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
            ConfigError: it is not what `to_json` returns.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        # Of invalid UTF-8 and of bottomless nesting, msgspec lets Python's errors through.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"the daemon got settings that it cannot read: {error}") from error


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
    """Return a setting's name of today where `name` is one that it had; else `name`."""
    return next((now for now, option in options().items() if option.formerly == name), name)


def former_names() -> list[str]:
    """Return the names that settings had, which are read, too."""
    return [option.formerly for option in options().values() if option.formerly]


def env_name(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def flag_name(name: str) -> str:
    """Return the command-line flag of a setting."""
    return "--triton-option" if name == "tritonserver_options" else f"--{name.replace('_', '-')}"
