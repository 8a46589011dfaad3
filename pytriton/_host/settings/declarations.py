"""Declarations of all settings of the daemon: the name, type, default, help text and validator of each.

Flags, environment variables, keys of `pytriton-daemon.toml` and docs/reference/configuration.md are derived from
`DaemonConfig`. sources.py reads the values that users set. The daemon process receives the result as one object.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Optional

import msgspec

from pytriton._host.settings import parsing as values
from pytriton._host.settings.combinations import contradictions
from pytriton._host.settings.limits import FRONTEND_LIMITS, OPENAI_LIMITS, Limit, limits
from pytriton._host.settings.parsing import Kind
from pytriton._host.settings.triton_options import Options, read_options
from pytriton._protocol.files.rundir import RuntimeDir, default_runtime_dir, default_state_dir

#: Prefix of the environment variables: the prefix and the setting's name in capitals.
ENV_PREFIX = "PYTRITON_DAEMON_"
#: Not a setting: the id of a process. Every daemon started below it exits when that process exits (owner.py).
ENV_OWNER = f"{ENV_PREFIX}OWNER"

#: Validators that many settings use.
PORT = values.integer(0, 65535)
SECONDS = values.number(0)


@dataclass(frozen=True)
class Option:
    """The metadata of a setting, except its type and default.

    Args:
        help: what the setting does
        kind: the validator of its values
        live: whether `reload` applies it to the running daemon; a setting of workers applies to models registered later
        of_server: whether `restart --server` applies it to the new tritonserver; not so for ports, addresses and
            sockets, which the daemon owns and passes on
    """

    help: str
    kind: Kind
    live: bool = False
    of_server: bool = False

    def check(self, name: str, value: object) -> None:
        """Check that a value is allowed.

        Raises:
            ValueError: the value is not allowed; the text names the setting.
        """
        try:
            self.kind.read(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


class ConfigError(Exception):
    """Invalid settings. The text names the source, key, value and allowed values of each."""


def _list_defaults(table: Mapping[str, Limit]) -> str:
    return ", ".join(f"{name} ({one.default:.15g})" for name, one in table.items())


#: Endpoints that Triton can restrict with a token; the first five change the server or reveal data about its users.
_ENDPOINTS = ("model-repository", "shared-memory", "trace", "logging", "statistics")
_ALL_ENDPOINTS = (*_ENDPOINTS, "health", "metadata", "inference", "model-config")
_OPTIONS = Kind("options of tritonserver", read_options)


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The validated settings of one daemon. Units: `_s` is seconds, `_size` is bytes.

    Raises:
        ValueError: a value is not allowed, or two values contradict each other.
    """

    # ── directories ──────────────────────────────────────────────────────────────────────────────
    runtime_dir: Annotated[
        str,
        Option(
            "Directory for sockets, logs and the PID file. Default: $XDG_RUNTIME_DIR/pytriton-daemon, else "
            "/run/pytriton-daemon for root, else pytriton-daemon-UID in the temporary directory.",
            values.path(),
        ),
    ] = msgspec.field(default_factory=lambda: str(default_runtime_dir()))

    state_dir: Annotated[
        Optional[str],
        Option(
            "Directory in which registrations are persisted for the next start. Default: /var/lib/pytriton-daemon "
            "for root, else pytriton-daemon in $XDG_STATE_HOME or ~/.local/state. If the runtime directory is "
            "not the default one: `state` in the runtime directory.",
            values.optional(values.path()),
        ),
    ] = None
    ephemeral: Annotated[
        bool,
        Option("Neither persist registrations nor restore them at startup.", values.boolean()),
    ] = False

    # ── endpoints ────────────────────────────────────────────────────────────────────────────────
    allow_http: Annotated[bool, Option("Serve HTTP.", values.boolean())] = True
    http_address: Annotated[
        str, Option("Address to serve HTTP on. 0.0.0.0 listens on every interface.", values.text())
    ] = "127.0.0.1"
    http_port: Annotated[int, Option("HTTP port. 0 picks a free port.", PORT)] = 8000
    cors_origins: Annotated[
        tuple[str, ...],
        Option(
            "Origin of web pages that may call typed functions and the OpenAI API. May be repeated. `*` allows all.",
            values.several(values.origin()),
        ),
    ] = ()
    allow_grpc: Annotated[bool, Option("Serve gRPC.", values.boolean())] = True
    grpc_address: Annotated[
        str, Option("Address to serve gRPC on. 0.0.0.0 listens on every interface.", values.text())
    ] = "127.0.0.1"
    grpc_port: Annotated[int, Option("gRPC port. 0 picks a free port.", PORT)] = 8001
    allow_metrics: Annotated[bool, Option("Serve Prometheus metrics.", values.boolean())] = True
    allow_client_shm: Annotated[
        bool,
        Option(
            "Allow clients to register shared memory for tensors. By default, that requires the access token.",
            values.boolean(),
            of_server=True,
        ),
    ] = True
    metrics_address: Annotated[
        str,
        Option("Address to serve metrics on. 0.0.0.0 listens on every interface.", values.text()),
    ] = "127.0.0.1"
    metrics_port: Annotated[int, Option("Metrics port. 0 picks a free port.", PORT)] = 8002

    # ── management ───────────────────────────────────────────────────────────────────────────────
    management_address: Annotated[
        Optional[str],
        Option(
            "Address and port to serve /metrics and the dashboard on. Port 0 picks a free port, shown by `status`.",
            values.optional(values.address()),
        ),
    ] = None
    management_unix_socket: Annotated[
        Optional[str],
        Option(
            "Unix socket on which the daemon serves /metrics and the dashboard, for its own user only.",
            values.optional(values.path()),
        ),
    ] = None
    management_certificate: Annotated[
        Optional[str],
        Option(
            "Certificate (PEM) for serving `management_address` over HTTPS instead of HTTP.",
            values.optional(values.path()),
        ),
    ] = None
    management_key: Annotated[
        Optional[str],
        Option("Private key (PEM) of management_certificate.", values.optional(values.path())),
    ] = None
    management_require_token: Annotated[
        bool,
        Option(
            "Require the access token on `management_address`, as `Authorization: Bearer TOKEN`.",
            values.boolean(),
        ),
    ] = False

    # ── control ──────────────────────────────────────────────────────────────────────────────────
    control_group: Annotated[
        Optional[str],
        Option(
            "Group whose members may also control the daemon, and thereby run code as its user. Default: only that "
            "user and root may.",
            values.optional(values.text()),
        ),
    ] = None
    control_tcp: Annotated[
        Optional[str],
        Option(
            "Address and port on which clients with a key may control the daemon. Port 0 picks a free port. Needs a "
            "key, created with `pytriton-daemon keys init`.",
            values.optional(values.address()),
        ),
    ] = None
    keys_dir: Annotated[
        Optional[str],
        Option(
            "Directory with the keys for control_tcp. Default: /etc/pytriton-daemon/keys for root, else "
            "pytriton-daemon/keys in $XDG_CONFIG_HOME or ~/.config.",
            values.optional(values.path()),
        ),
    ] = None

    # ── the OpenAI API ───────────────────────────────────────────────────────────────────────────
    openai_address: Annotated[
        str,
        Option(
            "Address to serve the OpenAI API on. 0.0.0.0 listens on every interface.", values.text()
        ),
    ] = "127.0.0.1"
    openai_port: Annotated[
        int,
        Option(
            "Port of the OpenAI API, opened once a model uses it. 0 picks a free port.",
            PORT,
        ),
    ] = 8003
    openai_keys_file: Annotated[
        Optional[str],
        Option(
            "TOML file with API keys and quotas for the OpenAI API, reloaded when it changes. Default: no key is "
            "required.",
            values.optional(values.path()),
        ),
    ] = None
    openai_remote_urls: Annotated[
        bool,
        Option(
            "Accept remote URLs in messages to the OpenAI API. The callable may fetch them; the daemon never does.",
            values.boolean(),
        ),
    ] = False
    openai_limit: Annotated[
        tuple[str, ...],
        Option(
            "Limit of the OpenAI API, as NAME=VALUE. May be repeated. Defaults: "
            f"`{_list_defaults(OPENAI_LIMITS)}`. `body_bytes` is the maximum size of a request body, `requests` the "
            "maximum number of concurrent requests (beyond it, requests fail with 429), `response_s` the maximum "
            "duration of a response in seconds (0 disables it).",
            limits(OPENAI_LIMITS),
        ),
    ] = ()

    # ── the frontend ────────────────────────────────────────────────────────────────────────────────
    frontend: Annotated[
        str,
        Option(
            "Server around Triton's core. `native` is pytriton-daemon's own server; a checkout builds it once with a C "
            "compiler. `triton` is NVIDIA's tritonserver. `auto` uses the native server, or NVIDIA's if the native one "
            "is unavailable (the log says why) or does not support one of tritonserver_options.",
            values.choice("auto", "native", "triton"),
        ),
    ] = "auto"
    frontend_limit: Annotated[
        tuple[str, ...],
        Option(
            "Limit of the native frontend, as NAME=VALUE. May be repeated. Defaults: "
            f"`{_list_defaults(FRONTEND_LIMITS)}`. `_s` means seconds. The `total_*` limits default to these values or to a quarter of the "
            "memory of the machine (or of the daemon's control group), whichever is more.",
            limits(FRONTEND_LIMITS),
            of_server=True,
        ),
    ] = ()
    http_unix_socket: Annotated[
        Optional[str],
        Option(
            "Unix socket on which the native frontend also serves HTTP, for the daemon's user only.",
            values.optional(values.path()),
        ),
    ] = None
    grpc_unix_socket: Annotated[
        Optional[str],
        Option(
            "Unix socket on which the native frontend also serves gRPC, for the daemon's user only.",
            values.optional(values.path()),
        ),
    ] = None
    http_certificate: Annotated[
        Optional[str],
        Option(
            "Certificate chain (PEM) with which the native frontend serves HTTPS instead of HTTP. For TLS with gRPC, "
            "use grpc-use-ssl in tritonserver_options.",
            values.optional(values.path()),
            of_server=True,
        ),
    ] = None
    http_key: Annotated[
        Optional[str],
        Option(
            "Private key (PEM) of http_certificate.",
            values.optional(values.path()),
            of_server=True,
        ),
    ] = None
    http_client_authorities: Annotated[
        Optional[str],
        Option(
            "CA certificates (PEM) for verifying HTTPS clients. Default: clients need no certificate.",
            values.optional(values.path()),
            of_server=True,
        ),
    ] = None

    # ── tritonserver ─────────────────────────────────────────────────────────────────────────────
    tritonserver: Annotated[
        Optional[str],
        Option(
            "tritonserver binary or installation directory. Default: /opt/tritonserver, the one on PATH, or the one "
            "in the cache, which is downloaded if missing.",
            values.optional(values.path()),
        ),
    ] = None
    proxy_python: Annotated[
        Optional[str],
        Option(
            "Python 3.9 to 3.12 with a shared libpython, for models on Triton's own python backend, and for all models "
            "if the compiled proxy is unavailable. Default: a suitable one is searched for when needed.",
            values.optional(values.path()),
        ),
    ] = None
    cache_dir: Annotated[
        Optional[str],
        Option(
            "Directory for the downloaded tritonserver and its proxies' environments. Default: "
            "pytriton-daemon in $XDG_CACHE_HOME or ~/.cache.",
            values.optional(values.path()),
        ),
    ] = None
    response_cache_size: Annotated[
        int,
        Option(
            "Size of the response cache, in bytes. 0 disables it. Used by models whose configuration enables "
            "response_cache. Needs the native frontend.",
            values.size(),
            of_server=True,
        ),
    ] = 0
    tritonserver_options: Annotated[
        Options,
        Option(
            "Any other tritonserver option, by its name without leading dashes. As a flag: --triton-option NAME=VALUE.",
            _OPTIONS,
            of_server=True,
        ),
    ] = msgspec.field(default_factory=dict)

    # ── model repositories ───────────────────────────────────────────────────────────────────────
    model_repository: Annotated[
        tuple[str, ...],
        Option(
            "Directory of models in Triton's layout, or a URL with s3://, gs:// or as://. May be repeated.",
            values.several(values.path()),
        ),
    ] = ()
    model_control_mode: Annotated[
        str,
        Option(
            "Which models in model_repository to load. `none`: all models, at startup. `explicit`: the models in "
            "load_model. `poll`: all models; a model is reloaded when its files change.",
            values.choice("none", "explicit", "poll"),
        ),
    ] = "none"
    load_model: Annotated[
        tuple[str, ...],
        Option(
            "Name of a model to load at startup with model_control_mode explicit. May be repeated. `*` loads all.",
            values.several(values.text()),
        ),
    ] = ()
    model_python: Annotated[
        Optional[str],
        Option(
            "Interpreter for workers that serve models in model_repository. Its environment must have the frameworks of "
            "these models. Default: the daemon's interpreter.",
            values.optional(values.path()),
        ),
    ] = None

    model_env: Annotated[
        tuple[str, ...],
        Option(
            "Environment variable for workers that serve models in model_repository. NAME copies one of the "
            "daemon's variables, NAME=VALUE sets one, `*` copies all. May be repeated. Variables that are neither "
            "secrets nor part of a login session are always copied.",
            values.several(values.variable()),
        ),
    ] = ()
    python_backend_model: Annotated[
        tuple[str, ...],
        Option(
            "Python model in model_repository to serve with tritonserver's own python backend instead of workers. "
            "May be repeated. `*` means all.",
            values.several(values.text()),
        ),
    ] = ()
    install_packages: Annotated[
        bool,
        Option(
            "Create environments for models in model_repository, with the packages that their format needs and "
            "those in their requirements.txt. Environments are reused.",
            values.boolean(),
        ),
    ] = False

    # ── access ───────────────────────────────────────────────────────────────────────────────────
    restricted_endpoints: Annotated[
        tuple[str, ...],
        Option(
            "Triton endpoints that require the access token, over HTTP and gRPC.",
            values.names(*_ALL_ENDPOINTS),
            of_server=True,
        ),
    ] = _ENDPOINTS
    access_token: Annotated[
        Optional[str],
        Option(
            "Token for the restricted endpoints. Default: a new random token at each start, shown by `pytriton-daemon "
            "access-token`. Do not pass it as a flag: other users can see flags.",
            values.optional(values.secret()),
        ),
    ] = None

    # ── starting, stopping, restarting ───────────────────────────────────────────────────────────
    readiness: Annotated[
        str,
        Option(
            "When /v2/health/ready first succeeds after tritonserver starts. `all_loaded`: once all persisted models "
            "and all models in model_repository are loaded. `all_attempted`: once each of them is loaded or has failed to "
            "load. `server_up`: once models can be registered.",
            values.choice("all_loaded", "all_attempted", "server_up"),
        ),
    ] = "all_loaded"

    server_probe_timeout_s: Annotated[
        float,
        Option(
            "Time without a successful liveness probe after which tritonserver is killed and restarted, in seconds. 0 "
            "disables probing.",
            SECONDS,
            of_server=True,
        ),
    ] = 10.0

    grace_period_s: Annotated[
        float,
        Option(
            "Time to wait for in-flight batches at shutdown, in seconds.",
            SECONDS,
            live=True,
            of_server=True,
        ),
    ] = 30.0
    worker_restart_limit: Annotated[
        Optional[int],
        Option(
            "Maximum number of consecutive restarts of a worker that exits unexpectedly or fails to load its model; "
            "exits caused by a batch do not count. 0 disables restarts. Default: no limit.",
            values.optional(values.integer(0)),
            live=True,
        ),
    ] = None

    resume_timeout_s: Annotated[
        float,
        Option(
            "Time that requests wait for a suspended model to resume, in seconds since the first request. After that, "
            "requests fail until the model is ready. With the native frontend, requests also wait this long for models "
            "that are being restored.",
            SECONDS,
        ),
    ] = 60.0

    max_fork_servers: Annotated[
        int,
        Option(
            "Maximum number of fork servers, one for each worker environment (interpreter and variables). A "
            "fork server (about 20 MB) starts a worker in 10 ms of CPU time instead of 200 ms, and exits after ten "
            "idle minutes. 0 starts an interpreter for each worker.",
            values.integer(0),
        ),
    ] = 4

    memory_budget: Annotated[
        Optional[str],
        Option(
            "Memory that all workers may use together, in bytes or as a share of the memory of the machine or its "
            "control group. A model that does not fit waits until enough idle models are suspended (lazy ones and those "
            "with min=0; with suspend_any_idle_model, any). A model that can never fit is refused. Default: no limit.",
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
            "plain: like console, but without labels on the output of models and tritonserver. none: no output. Log "
            "files are always JSON lines.",
            values.choice("auto", "console", "json", "none", "plain"),
        ),
    ] = "auto"
    log_level: Annotated[
        str,
        Option(
            "Minimum log level.",
            values.choice("debug", "info", "warning", "error"),
            live=True,
        ),
    ] = "info"

    webhooks: Annotated[
        Optional[str],
        Option(
            "TOML file with the webhooks to which signed events are sent.",
            values.optional(values.path()),
        ),
    ] = None

    # ── fixed values ─────────────────────────────────────────────────────────────────────────────
    # Not settings: the values suit every deployment. They are fields so that tests and benchmarks can pass others.
    #: "native" and "python" require one proxy; with "auto", the Python proxy serves if the compiled one is unavailable
    proxy: str = "auto"
    server_start_timeout_s: float = 120.0  #: how long tritonserver may take to start
    server_probe_interval_s: float = 5.0  #: between liveness probes of tritonserver
    #: Maximum delay before a restart of tritonserver: calls of gRPC clients fail after 20 s.
    server_backoff_max_s: float = 10.0
    #: how long a replaced tritonserver (`restart --server`) may take to finish its requests and streams
    retire_timeout_s: float = 3600.0
    #: how long register, scale and rollback wait until tritonserver has started or a model is restored
    server_wait_timeout_s: float = 600.0
    #: how long a worker process may take to start, without the loading of the model
    worker_start_timeout_s: float = 120.0
    #: delay before the second consecutive restart of a worker; it doubles with each further one
    worker_backoff_s: float = 0.5
    worker_backoff_max_s: float = 30.0  #: maximum delay before a restart of a worker
    #: how long a model may have no worker before it is reported as not ready and its requests fail immediately
    not_ready_after_s: float = 5.0
    #: maximum number of requests queued for a suspended model; beyond it, the oldest ones fail
    resume_queue_size: int = 1000
    #: Number of models, the last suspended first, for which a worker process (30 MB) without the model keeps running.
    prestarted_workers: int = 4
    log_file_size: int = 10_000_000  #: bytes after which a log file is rotated
    #: bytes of the event log in the state directory; 0 keeps events in memory only
    event_log_size: int = 8_000_000

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
        """The runtime directory, with the paths in it."""
        return RuntimeDir(Path(self.runtime_dir))

    @property
    def state_path(self) -> Path:
        """The state directory; with `ephemeral`, a temporary directory in the runtime directory."""
        if self.ephemeral:
            return self.rundir.path / "ephemeral"
        if self.state_dir is not None:
            return Path(self.state_dir)
        return default_state_dir(self.rundir.path)

    def to_json(self) -> bytes:
        """Encode the settings as JSON, for `from_json` in another process."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> DaemonConfig:
        """Decode settings that `to_json` has encoded.

        Raises:
            ConfigError: `data` is not a valid set of settings.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        # msgspec does not wrap Python's own errors for invalid UTF-8 and too deep nesting.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"the daemon has received invalid settings: {error}") from error


@lru_cache(maxsize=1)
def options() -> dict[str, Option]:
    """Return the settings by name, in the order of their declaration."""
    hints: dict[str, Any] = typing.get_type_hints(DaemonConfig, include_extras=True)
    return {
        name: option
        for name in DaemonConfig.__struct_fields__
        for option in getattr(hints[name], "__metadata__", ())
        if isinstance(option, Option)
    }


def env_name(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def flag_name(name: str) -> str:
    """Return the command-line flag of a setting."""
    return "--triton-option" if name == "tritonserver_options" else f"--{name.replace('_', '-')}"
