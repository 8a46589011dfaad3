"""Control messages: every message that the dispatcher sends or receives, and their bytes.

Who talks to whom (each arrow is one frozen type below)::

    client ── Register, Unregister, ListModels, GetStatus, GetLogs, Shutdown ──▶ dispatcher
    client ◀─ Progress*, then one of Registered, Done, Models, Status, LogLines, Failure ── dispatcher
    worker ── WorkerHello, WorkerReady, WorkerFailed, WorkerUnrecoverable ──▶ dispatcher
    worker ◀─ LoadModel, WithdrawLane, RetireWorker ── dispatcher
    proxy  ── Attach, ExplainLoss, Detach ──▶ dispatcher
    proxy  ◀─ Attached, LossExplained, Failure ── dispatcher

On the wire a message is MessagePack (msgspec, tagged by the type's name); what it carries of a
user's own bytes (pickled callables) travels beside it in frames of its own and is never opened by
the dispatcher. The format is private to one version of this package: `PROTOCOL` is compared in
every hello.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import msgspec

#: Raised whenever a message or a lane descriptor changes its shape.
PROTOCOL = 1


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all control messages."""


# ── what a model is ──────────────────────────────────────────────────────────────────────────────


class World(msgspec.Struct, frozen=True):
    """The surroundings a worker runs in: by default those of the process that registers.

    `python` is an interpreter; `sys_path` is its module search path in order (empty: the
    interpreter's own); `cwd` the working directory; `env` the variables set on top of the daemon's
    own environment.
    """

    python: str
    sys_path: list[str] = []
    cwd: str = "/"
    env: dict[str, str] = {}


class ModelSpec(msgspec.Struct, frozen=True):
    """Everything about a model but its callables.

    `config` is Triton's model configuration in its JSON form, without backend and instance group,
    which the dispatcher adds. `payloads[i]` of the Register message belongs to instance i, or the
    only one to all.
    """

    name: str
    version: int
    config: dict[str, Any]
    world: World
    instances: int = 1
    #: One entry per instance: what CUDA_VISIBLE_DEVICES is set to; None leaves it alone.
    devices: list[Optional[str]] = []
    #: The payload is called once in the worker and returns the callable to serve.
    factory: bool = False
    #: Outputs must have exactly the declared dtype and shape.
    strict: bool = False
    #: Seconds a worker may take to load its callable.
    load_timeout_s: float = 600.0


# ── client → dispatcher ──────────────────────────────────────────────────────────────────────────


class Register(Message, frozen=True):
    """Serve a model. Payload frames: one pickled callable, or one per instance."""

    spec: ModelSpec
    replace: bool = False
    protocol: int = PROTOCOL


class Unregister(Message, frozen=True):
    """Stop serving a model and end its workers."""

    name: str


class ListModels(Message, frozen=True):
    """Ask for Models."""


class GetStatus(Message, frozen=True):
    """Ask for Status."""


class GetLogs(Message, frozen=True):
    """Ask for the newest `lines` log lines of a model, or of the daemon when `model` is None."""

    model: Optional[str] = None
    lines: int = 100


class Shutdown(Message, frozen=True):
    """Stop the daemon as SIGTERM does; answered before it stops."""


class Reload(Message, frozen=True):
    """Read the settings anew as SIGHUP does; answered with Reloaded."""


# ── dispatcher → client ──────────────────────────────────────────────────────────────────────────


class Progress(Message, frozen=True):
    """How far a registration is. `done` of `total` workers have finished `stage`."""

    stage: str
    text: str
    done: int = 0
    total: int = 0


class InstanceInfo(msgspec.Struct, frozen=True):
    """One instance of a model. `lanes` counts the proxies attached; `restarts` the workers replaced."""

    index: int
    state: str
    pid: Optional[int]
    device: Optional[str] = None
    lanes: int = 0
    restarts: int = 0
    #: Why the last worker ended, when it did not end on request.
    last_exit: Optional[str] = None


class ModelInfo(msgspec.Struct, frozen=True):
    """One model as the dispatcher sees it."""

    name: str
    version: int
    state: str
    instances: list[InstanceInfo]
    url: str = ""
    #: Triton's model configuration as it was loaded, in JSON form.
    config: dict[str, Any] = {}
    python: str = ""
    registered_at: float = 0.0
    #: The runtime directory's log file with this model's own lines.
    log_file: str = ""


class ServerInfo(msgspec.Struct, frozen=True):
    """The tritonserver that the daemon owns. An empty URL: that endpoint is switched off."""

    state: str
    pid: Optional[int]
    version: str = ""
    http_url: str = ""
    grpc_url: str = ""
    metrics_url: str = ""
    binary: str = ""


class Registered(Message, frozen=True):
    """The model answers requests now."""

    model: ModelInfo


class Done(Message, frozen=True):
    """The request was carried out."""


class Models(Message, frozen=True):
    """Answer to ListModels, in the order of registration."""

    models: list[ModelInfo]


class Status(Message, frozen=True):
    """Answer to GetStatus. Times are seconds since the epoch."""

    version: str
    pid: int
    python: str
    runtime_dir: str
    state: str
    started_at: float
    server: ServerInfo
    models: list[ModelInfo]


class LogLines(Message, frozen=True):
    """Answer to GetLogs: JSON lines, oldest first."""

    lines: list[str]


class Reloaded(Message, frozen=True):
    """Answer to Reload: names of changed settings. With a `problem` nothing has changed."""

    applied: list[str]
    needs_restart: list[str]
    problem: str = ""


class Failure(Message, frozen=True):
    """The request could not be carried out. `kind` is one of `errors.ErrorKind`."""

    kind: str
    text: str
    #: The traceback from the process where it went wrong, if there is one.
    traceback: Optional[str] = None


# ── worker ↔ dispatcher ──────────────────────────────────────────────────────────────────────────


class WorkerHello(Message, frozen=True):
    """A worker process is up and asks for its model."""

    worker: str
    pid: int
    python_version: str
    protocol: int = PROTOCOL


class LoadModel(Message, frozen=True):
    """The model of this worker. Payload frame: the pickled callable."""

    spec: ModelSpec
    instance: int
    #: The path of the unix socket on which the worker listens for lanes.
    lane_path: str


class WorkerReady(Message, frozen=True):
    """The callable is loaded and the worker listens for lanes."""

    worker: str


class WorkerFailed(Message, frozen=True):
    """The callable could not be loaded; the worker ends."""

    worker: str
    text: str
    traceback: str


class WorkerUnrecoverable(Message, frozen=True):
    """A callable raised PyTritonUnrecoverableError: the daemon has to stop."""

    worker: str
    text: str


class WithdrawLane(Message, frozen=True):
    """Send the proxy of one lane elsewhere: another worker has none."""


class RetireWorker(Message, frozen=True):
    """Finish the batches at hand, send proxies elsewhere, then end."""


# ── proxy ↔ dispatcher ───────────────────────────────────────────────────────────────────────────


class Attach(Message, frozen=True):
    """A proxy instance asks for a lane. `lost` names the worker that it could not reach, if there was one.

    `registration` is what the dispatcher wrote into the model's configuration: a model that
    replaces another one of the same name has a registration of its own.
    """

    registration: str
    instance: str
    lost: Optional[str] = None
    protocol: int = PROTOCOL


class Attached(Message, frozen=True):
    """Connect to the worker that listens at `lane_path`."""

    worker: str
    lane_path: str


class ExplainLoss(Message, frozen=True):
    """The lane of a worker broke in the middle of a batch: how did the worker end?"""

    registration: str
    worker: str


class Detach(Message, frozen=True):
    """A proxy instance ends: Triton has unloaded its model, no batch of it is under way."""

    registration: str
    instance: str


class LossExplained(Message, frozen=True):
    """Answer to ExplainLoss: one sentence for the clients whose batch was lost."""

    text: str


AnyMessage = Union[
    Register,
    Unregister,
    ListModels,
    GetStatus,
    GetLogs,
    Shutdown,
    Reload,
    Progress,
    Registered,
    Done,
    Models,
    Status,
    LogLines,
    Reloaded,
    Failure,
    WorkerHello,
    LoadModel,
    WorkerReady,
    WorkerFailed,
    WorkerUnrecoverable,
    RetireWorker,
    WithdrawLane,
    Attach,
    Attached,
    ExplainLoss,
    Detach,
    LossExplained,
]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


class MalformedMessage(ValueError):
    """Bytes that are no message of this protocol."""


def encode(message: AnyMessage) -> bytes:
    """Return the wire form of a control message."""
    return _encoder.encode(message)


def decode(data: bytes) -> AnyMessage:
    """Return the control message in `data`.

    Raises:
        MalformedMessage: for anything that is not exactly one well-formed message.
    """
    try:
        message: AnyMessage = _decoder.decode(data)
    # ValidationError is a DecodeError; of invalid UTF-8, msgspec lets Python's error through.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(str(error)) from error
    return message
