"""Every setting of the daemon, declared once.

Flags, environment variables, keys of `pytriton-daemon.toml` and docs/configuration.md are all made
of `DaemonConfig`; `config_sources` reads the sources. The daemon process gets the result as one
object.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Optional

import msgspec

from pytriton.dispatcher.settings import parsing as values
from pytriton.dispatcher.settings.combinations import contradictions
from pytriton.dispatcher.settings.parsing import Kind
from pytriton.dispatcher.settings.triton_options import Options, read_options
from pytriton.ipc.rundir import RuntimeDir, default_runtime_dir, default_state_dir

#: An environment variable is this and the setting's name in capitals.
ENV_PREFIX = "PYTRITON_DAEMON_"
#: No setting: names a process that every daemon started below it lives for (owner.py).
ENV_OWNER = f"{ENV_PREFIX}OWNER"


class ConfigError(Exception):
    """Settings that cannot be used; the text names each source, key, value and what is allowed."""


@dataclass(frozen=True)
class Option:
    """What is known of a setting beside its type and default."""

    help: str
    kind: Kind


_PORT = values.integer(0, 65535)
_SECONDS = values.number(0)
#: What Triton can ask a token for; the first five change the server or tell about its users.
_ENDPOINTS = ("model-repository", "shared-memory", "trace", "logging", "statistics")
_ALL_ENDPOINTS = (*_ENDPOINTS, "health", "metadata", "inference", "model-config")
_OPTIONS = Kind("options of tritonserver", read_options)


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one daemon, checked. Units: `_s` is seconds, `_size` is bytes.

    Raises:
        ValueError: a value is not allowed, or two of them contradict each other.
    """

    runtime_dir: Annotated[
        str,
        Option(
            "Folder of the daemon's sockets, logs and pid. Default: pytriton-daemon in "
            "$XDG_RUNTIME_DIR, /run/pytriton-daemon for root, or pytriton-daemon-UID in the folder "
            "for temporary files.",
            values.path(),
        ),
    ] = msgspec.field(default_factory=lambda: str(default_runtime_dir()))

    state_dir: Annotated[
        Optional[str],
        Option(
            "Folder where registrations are kept for the next start. Default: /var/lib/pytriton-daemon "
            "for root, else pytriton-daemon in $XDG_STATE_HOME or ~/.local/state; `state` in the "
            "runtime directory when that is not the default one.",
            values.optional(values.path()),
        ),
    ] = None
    ephemeral: Annotated[
        bool,
        Option("Keep no registrations, and restore none at the start.", values.boolean()),
    ] = False

    # ── endpoints ────────────────────────────────────────────────────────────────────────────────
    allow_http: Annotated[bool, Option("Serve HTTP.", values.boolean())] = True
    http_address: Annotated[
        str, Option("Address that HTTP is served on; 0.0.0.0 is every interface.", values.text())
    ] = "127.0.0.1"
    http_port: Annotated[int, Option("Port of HTTP; 0 takes a free one.", _PORT)] = 8000
    allow_grpc: Annotated[bool, Option("Serve gRPC.", values.boolean())] = True
    grpc_address: Annotated[
        str, Option("Address that gRPC is served on; 0.0.0.0 is every interface.", values.text())
    ] = "127.0.0.1"
    grpc_port: Annotated[int, Option("Port of gRPC; 0 takes a free one.", _PORT)] = 8001
    allow_metrics: Annotated[bool, Option("Serve metrics for Prometheus.", values.boolean())] = True
    metrics_address: Annotated[
        str,
        Option("Address that metrics are served on; 0.0.0.0 is every interface.", values.text()),
    ] = "127.0.0.1"
    metrics_port: Annotated[int, Option("Port of metrics; 0 takes a free one.", _PORT)] = 8002

    # ── control ──────────────────────────────────────────────────────────────────────────────────
    control_group: Annotated[
        Optional[str],
        Option(
            "Name of a group whose members may control the daemon, too: whoever may register a "
            "callable can do all that the daemon's user can. Default: only that user and root.",
            values.optional(values.text()),
        ),
    ] = None
    control_tcp: Annotated[
        Optional[str],
        Option(
            "Address and port on which clients with a key may control the daemon, too; port 0 "
            "takes a free one. It needs `pytriton-daemon keys init`. Default: none.",
            values.optional(values.address()),
        ),
    ] = None
    keys_dir: Annotated[
        Optional[str],
        Option(
            "Folder of the keys for control_tcp. Default: /etc/pytriton-daemon/keys for root, else "
            "pytriton-daemon/keys in $XDG_CONFIG_HOME or ~/.config.",
            values.optional(values.path()),
        ),
    ] = None
    max_payload_size: Annotated[
        int,
        Option(
            "The most bytes of one pickled callable; a larger one is refused.",
            values.size(),
        ),
    ] = 4 << 30

    # ── tritonserver ─────────────────────────────────────────────────────────────────────────────
    tritonserver: Annotated[
        Optional[str],
        Option(
            "A tritonserver binary, or the folder of an installation. Default: /opt/tritonserver, "
            "the one on PATH, or the one that is fetched into the cache.",
            values.optional(values.path()),
        ),
    ] = None
    proxy_python: Annotated[
        Optional[str],
        Option(
            "Python 3.9 to 3.12 with a shared libpython, for what runs inside tritonserver in Python: the `python` "
            "proxy, and models of its own python backend. Default: one that is found when it is needed.",
            values.optional(values.path()),
        ),
    ] = None
    proxy: Annotated[
        str,
        Option(
            "What stands for models inside of tritonserver: `native` is compiled once with a C compiler and "
            "faster, `python` needs none; `auto` is the first where it can be had.",
            values.choice("auto", "native", "python"),
        ),
    ] = "auto"
    cache_dir: Annotated[
        Optional[str],
        Option(
            "Folder where the fetched tritonserver and what its proxies need are kept. Default: "
            "pytriton-daemon in $XDG_CACHE_HOME or ~/.cache.",
            values.optional(values.path()),
        ),
    ] = None
    response_cache_size: Annotated[
        int,
        Option(
            "Bytes of tritonserver's local response cache; 0 switches it off. A model takes part "
            "when its configuration says so.",
            values.size(),
        ),
    ] = 0
    tritonserver_options: Annotated[
        Options,
        Option(
            "Any other option of tritonserver by its name without dashes; flag: --triton-option "
            "NAME=VALUE.",
            _OPTIONS,
        ),
    ] = {}

    # ── model repositories ───────────────────────────────────────────────────────────────────────
    model_repository: Annotated[
        tuple[str, ...],
        Option(
            "A folder of models in Triton's layout, or s3://, gs:// or as://; may be given several "
            "times. See docs/runner.md.",
            values.several(values.path()),
        ),
    ] = ()
    model_control_mode: Annotated[
        str,
        Option(
            "What becomes of the models in model_repository: `none` loads all at the start, `explicit` "
            "those that load_model names, `poll` all, and again whenever their files change.",
            values.choice("none", "explicit", "poll"),
        ),
    ] = "none"
    load_model: Annotated[
        tuple[str, ...],
        Option(
            "Name of a model to load at the start, with model_control_mode explicit; may be given "
            "several times. `*` is all.",
            values.several(values.text()),
        ),
    ] = ()
    repository_poll_s: Annotated[
        float,
        Option("Seconds between two looks at the files, with model_control_mode poll.", _SECONDS),
    ] = 15.0
    model_python: Annotated[
        Optional[str],
        Option(
            "Interpreter of the workers that serve models of model_repository, with the frameworks "
            "that these need. Default: the daemon's own.",
            values.optional(values.path()),
        ),
    ] = None

    model_env: Annotated[
        tuple[str, ...],
        Option(
            "Environment variables for the workers that serve models of model_repository, beside those of the daemon's "
            "that neither look like secrets nor belong to a session: NAME copies one of the daemon's, NAME=VALUE sets "
            "one, `*` copies all; may be given several times.",
            values.several(values.variable()),
        ),
    ] = ()
    native_model: Annotated[
        tuple[str, ...],
        Option(
            "Name of a Python model in model_repository that tritonserver's own python backend serves "
            "instead of workers; may be given several times. `*` is all.",
            values.several(values.text()),
        ),
    ] = ()
    install_packages: Annotated[
        bool,
        Option(
            "Make environments for models of model_repository: with the packages of their format that "
            "model_python lacks, and those that a requirements.txt in their folder lists. They are kept.",
            values.boolean(),
        ),
    ] = False

    # ── access ───────────────────────────────────────────────────────────────────────────────────
    restricted_endpoints: Annotated[
        tuple[str, ...],
        Option(
            "Endpoints of Triton that ask for the access token, over HTTP and gRPC; see "
            "docs/security.md.",
            values.names(*_ALL_ENDPOINTS),
        ),
    ] = _ENDPOINTS
    access_token: Annotated[
        Optional[str],
        Option(
            "What the restricted endpoints ask for. Default: a random one for each start; "
            "`pytriton-daemon token` and `DaemonClient.access_token` tell it. Better set by "
            "variable or file than by flag: other users can see a command line.",
            values.optional(values.secret()),
        ),
    ] = None

    grpc_client_cert: Annotated[
        Optional[str],
        Option(
            "Certificate (PEM) that the daemon shows to its own tritonserver. Needed only when "
            "grpc-use-ssl-mutual is on and allow_http is off.",
            values.optional(values.path()),
        ),
    ] = None
    grpc_client_key: Annotated[
        Optional[str],
        Option("The key (PEM) of grpc_client_cert.", values.optional(values.path())),
    ] = None

    # ── starting, stopping, restarting ───────────────────────────────────────────────────────────
    server_start_timeout_s: Annotated[
        float, Option("Seconds tritonserver may take to start.", _SECONDS)
    ] = 60.0
    ready_when: Annotated[
        str,
        Option(
            "When tritonserver says that it is ready (/v2/health/ready), after each of its starts: `served`, when all "
            "models are served that were registered before or that model_repository is to serve; `tried`, also "
            "when some of them could not be; `up`, as soon as models can be registered.",
            values.choice("served", "tried", "up"),
        ),
    ] = "served"
    server_probe_interval_s: Annotated[
        float,
        Option(
            "Seconds from one look whether tritonserver still answers to the next; 0: never.",
            _SECONDS,
        ),
    ] = 5.0
    server_probe_timeout_s: Annotated[
        float,
        Option(
            "Seconds that tritonserver may leave every such question unanswered before it counts "
            "as hung, and is killed and started again.",
            _SECONDS,
        ),
    ] = 10.0
    server_restart_limit: Annotated[
        Optional[int],
        Option(
            "How many times in a row a tritonserver that ended by itself is started again before the daemon "
            "ends with code 6, for its service manager to see; 0: never started again. Default: no limit, with "
            "growing pauses.",
            values.optional(values.integer(0)),
        ),
    ] = None
    server_backoff_max_s: Annotated[
        float,
        Option(
            "The most seconds before tritonserver is started again. The first time in a row it is started at "
            "once, then after 0.5 s, and each further pause is twice as long.",
            _SECONDS,
        ),
    ] = 30.0
    worker_start_timeout_s: Annotated[
        float, Option("Seconds a worker may take to start, before it loads its model.", _SECONDS)
    ] = 60.0
    busy_timeout_s: Annotated[
        float,
        Option(
            "Seconds that register, scale and rollback wait while tritonserver is being started, or the model "
            "is being restored, before they are refused.",
            _SECONDS,
        ),
    ] = 600.0
    grace_period_s: Annotated[
        float, Option("Seconds that a stop waits for the batches at hand.", _SECONDS)
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
            _SECONDS,
        ),
    ] = 0.5
    worker_backoff_max_s: Annotated[
        float, Option("The most seconds before a worker's replacement.", _SECONDS)
    ] = 30.0

    unready_after_s: Annotated[
        float,
        Option(
            "Seconds that a model may be without a worker before tritonserver says that it is not "
            "ready and refuses its requests at once, until a worker is back.",
            _SECONDS,
        ),
    ] = 5.0

    # ── logs ─────────────────────────────────────────────────────────────────────────────────────
    log_format: Annotated[
        str,
        Option(
            "Form of the log on standard error: console, json, none, plain (what models and "
            "tritonserver print without labels, the rest as console), or auto: console on a "
            "terminal, else json. The log files are JSON lines always.",
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

    def __post_init__(self) -> None:
        for name, option in options().items():
            _check(name, option, getattr(self, name))
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


def env_name(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def flag_name(name: str) -> str:
    """Return the command-line flag of a setting."""
    return "--triton-option" if name == "tritonserver_options" else f"--{name.replace('_', '-')}"


def _check(name: str, option: Option, value: object) -> None:
    try:
        option.kind.read(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
