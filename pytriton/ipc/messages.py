"""Control messages: every message that the dispatcher sends or receives, and their bytes.

Who talks to whom (each arrow is one frozen type below)::

    client ── Register, Unregister, Scale, Rollback, ListModels, GetStatus, GetLogs, Cancel, Shutdown ──▶ dispatcher
    client ── LoadFromRepository, UnloadFromRepository, GetRepository ──▶ dispatcher
    client ◀─ Progress*, then one of Registered, Done, Models, Repository, Status, LogLines, Failure ── dispatcher
    worker ── WorkerHello, WorkerReady, WorkerFailed, WorkerSpent, WorkerUnrecoverable, WorkerEnded ──▶ dispatcher
    worker ◀─ LoadModel, WithdrawLane ── dispatcher
    registrant with workers in its threads ◀─ StartWorker, EndWorker, Released ── dispatcher
    proxy  ── Attach, LaneLost, BatchOverdue, MayCall, CallsWait, Detach ──▶ dispatcher
    proxy  ◀─ Attached, Verdict, StuckCalls, Failure ── dispatcher

On the wire a message is MessagePack (msgspec, tagged by the type's name); what it carries of a
user's own bytes (pickled callables) travels beside it in frames of its own and is never opened by
the dispatcher. The format is private to one version of this package: `PROTOCOL` is compared in
every hello.
"""

from __future__ import annotations

from typing import Any, Literal, Optional, Union

import msgspec

#: Raised whenever a message or a lane descriptor changes its shape.
PROTOCOL = 4


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


class Limits(msgspec.Struct, frozen=True):
    """What one worker may use; None: no limit. Sizes are bytes.

    `memory` is what its own memory (resident, not shared) may grow to before it is replaced, after
    the batch at hand. `memory_hard` is what it cannot pass: allocations fail, and with all that it
    started it is ended. `processes` counts what it starts. `cpus` are the CPUs it runs on (empty:
    all), `nice` is added to the daemon's niceness.
    """

    memory: Optional[int] = None
    memory_hard: Optional[int] = None
    open_files: Optional[int] = None
    processes: Optional[int] = None
    cpus: list[int] = []
    nice: int = 0


class WarmupTensor(msgspec.Struct, frozen=True):
    """One input of a warm-up request: `source` says where its values come from.

    `shape` is without the batch axis; `npy` is the content of the user's file (source "file").
    """

    name: str
    datatype: str
    shape: list[int]
    source: Literal["zero", "random", "file"]
    npy: bytes = b""


class Warmup(msgspec.Struct, frozen=True):
    """A request of `batch_size` rows that a worker's callable is given `count` times while it loads."""

    name: str
    batch_size: int
    count: int
    inputs: list[WarmupTensor]


class PythonModel(msgspec.Struct, frozen=True):
    """A Triton Python model: a class `TritonPythonModel` with the interface of Triton's python backend.

    `folder` is the model's folder in a model repository, whose `VERSION/FILE` is imported in the
    worker; empty: the payload is the class. `model_config` is Triton's configuration in full, JSON,
    as `initialize` gets it. `names`, `kinds` and `device_ids` say for each instance what it gets as
    `model_instance_name` and so on. `streams`: answers may come after `execute`
    has returned, or between batches.
    """

    model_config: str
    folder: str = ""
    file: str = "model.py"
    names: list[str] = []
    kinds: list[str] = []
    device_ids: list[str] = []
    streams: bool = False


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
    #: What becomes of the batch that a worker had when it ended: "retry" (once, in another worker)
    #: or "fail".
    on_crash: Literal["retry", "fail"] = "retry"
    #: Workers beyond `instances`, loaded and idle.
    spares: int = 0
    #: Seconds a batch may run; a worker over it is replaced.
    execution_timeout_s: Optional[float] = None
    #: Batches after which a worker is replaced.
    max_batches: Optional[int] = None
    limits: Limits = Limits()
    #: The last payload is a function that is called with the loaded callable and raises when that
    #: must not serve.
    check: bool = False
    #: Proxies that feed one worker, each over a lane of its own: with two, the next batch is on its
    #: way while one runs.
    lanes: int = 1
    #: Inputs are read-only views of Triton's memory, valid until the batch is answered.
    zero_copy_inputs: bool = False
    #: "thread": the workers are threads of the registrant; payloads are empty then.
    isolation: Literal["process", "thread"] = "process"
    warmups: list[Warmup] = []
    #: What is served is a Triton Python model and no inference callable.
    python_model: Optional[PythonModel] = None
    #: All versions that are served, when there are several. Of a Python model each has workers of its own;
    #: of any other, each request says which one it is for.
    versions: list[int] = []


# ── client → dispatcher ──────────────────────────────────────────────────────────────────────────


class Register(Message, frozen=True):
    """Serve a model. Payload frames: one pickled callable, or one per instance.

    A temporary one is served until the sender's process ends, and is not kept for the next start.
    """

    spec: ModelSpec
    replace: bool = False
    temporary: bool = False
    protocol: int = PROTOCOL


class Unregister(Message, frozen=True):
    """Stop serving a model and end its workers."""

    name: str


class Scale(Message, frozen=True):
    """Serve a model with another number of instances."""

    name: str
    instances: int


class Rollback(Message, frozen=True):
    """Put back what a model was before it was replaced."""

    name: str


class LoadFromRepository(Message, frozen=True):
    """Load a model of a model repository, or load it anew; `config` instead of the one in its folder."""

    name: str
    config: Optional[dict[str, Any]] = None


class UnloadFromRepository(Message, frozen=True):
    """Stop serving a model of a model repository."""

    name: str


class GetRepository(Message, frozen=True):
    """Ask for Repository."""


class ListModels(Message, frozen=True):
    """Ask for Models."""


class GetStatus(Message, frozen=True):
    """Ask for Status."""


class GetLogs(Message, frozen=True):
    """Ask for the newest `lines` log lines of a model, or of the daemon when `model` is None."""

    model: Optional[str] = None
    lines: int = 100


class Cancel(Message, frozen=True):
    """Give up an earlier request of the same connection, which then has no answer.

    Only Register can be given up: its workers end, and nothing of it is left. Otherwise it has no effect.
    """

    request_id: bytes


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


class WorkerEnd(msgspec.Struct, frozen=True):
    """How one worker ended that was not told to.

    `at` is seconds since the epoch, `peak_memory` bytes, `lines` what it printed last: the traces
    of Python's faulthandler among them.
    """

    at: float
    worker: str
    pid: int
    how: str
    exit_code: Optional[int] = None
    signal: Optional[str] = None
    peak_memory: int = 0
    batches: int = 0
    in_batch: bool = False
    lines: list[str] = []


class InstanceInfo(msgspec.Struct, frozen=True):
    """One instance of a model, or one of its spare workers.

    `lanes` counts the proxies attached; `restarts` the workers replaced; `batches` what the present
    worker has answered; `busy_s` how long its batch at hand has been running.
    """

    index: int
    state: str
    pid: Optional[int]
    device: Optional[str] = None
    lanes: int = 0
    restarts: int = 0
    #: Why the last worker ended, when it did not end on request.
    last_exit: Optional[str] = None
    #: A worker beyond the model's instances, kept to take over.
    spare: bool = False
    batches: int = 0
    busy_s: Optional[float] = None
    #: The newest ends, oldest first.
    ends: list[WorkerEnd] = []
    #: What it serves, where each version of a model has workers of its own.
    version: Optional[int] = None


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
    #: Why it could not be restored after a start of the daemon (state "failed").
    error: Optional[str] = None
    #: "thread": its workers are threads of the process that registered it, which `pid` of its instances names.
    isolation: str = "process"
    #: "tritonserver": one of its own backends serves the model, so there are no instances of ours.
    served_by: str = "workers"
    #: All versions that are served, when there are several.
    versions: list[int] = []


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


class RepositoryModel(msgspec.Struct, frozen=True):
    """One model of the model repositories that the daemon was given.

    `state`: loading, ready, unloading, unloaded or failed (`reason` says why). `served_by`: "tritonserver" or
    "workers"; empty while it is not served. `repository`: where it was found; empty when it is gone.
    """

    name: str
    repository: str
    versions: list[int]
    state: str
    served_by: str
    reason: str = ""


class Repository(Message, frozen=True):
    """Answer to GetRepository, by name."""

    models: list[RepositoryModel]


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
    #: The state directory; empty when nothing is kept.
    state_dir: str = ""
    #: What somebody should look at.
    problems: list[str] = []
    #: Where clients with a key may control the daemon; empty: nowhere.
    control_tcp: str = ""


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
    """The model of this worker. Payload frames: the pickled callable, and its check if it has one."""

    spec: ModelSpec
    instance: int
    #: The path of the unix socket on which the worker listens for lanes.
    lane_path: str
    #: tritonserver traces with OpenTelemetry: be ready to make spans.
    tracing: bool = False


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


class WorkerSpent(Message, frozen=True):
    """A worker serves on, but should be replaced: it has passed a limit of its model."""

    worker: str
    text: str


class WithdrawLane(Message, frozen=True):
    """Close one lane between batches: its proxy shall go to another worker, which has none."""


class WorkerEnded(Message, frozen=True):
    """A worker that is a thread has ended; what a process tells by its exit. `how` completes "worker w1 …"."""

    worker: str
    how: str


# ── dispatcher → registrant with workers in its threads, on the connection of its Register ─────────


class StartWorker(Message, frozen=True):
    """Run a worker in a thread: what starting a process does, its arguments and LoadModel in one.

    `lane_path` is where it listens for lanes; `gauge_path` a file that holds its gauge, removed when
    it has said hello.
    """

    worker: str
    instance: int
    lane_path: str
    gauge_path: str


class EndWorker(Message, frozen=True):
    """Have a worker end after its batch: what SIGTERM does to a process."""

    worker: str


class Released(Message, frozen=True):
    """The registration is over, whoever ended it; no more workers are started."""

    why: str


# ── proxy ↔ dispatcher ───────────────────────────────────────────────────────────────────────────


class Attach(Message, frozen=True):
    """A proxy instance asks for a lane. `lost` names the worker that it could not reach, if there was one.

    `registration` is what the dispatcher wrote into the model's configuration: a model that
    replaces another one of the same name has a registration of its own.
    """

    registration: str
    instance: str
    pid: int = 0
    lost: Optional[str] = None
    #: Workers that wait for the very batch that is to be served.
    avoid: list[str] = []
    #: Of the model; matters where each version has workers of its own.
    version: int = 0
    protocol: int = PROTOCOL


class Attached(Message, frozen=True):
    """Connect to the worker that listens at `lane_path`.

    `execution_timeout_s`: report a batch as overdue that is not answered for so long.
    `tracing`: tritonserver traces with OpenTelemetry, so tell the worker of each request's trace.
    """

    worker: str
    lane_path: str
    execution_timeout_s: Optional[float] = None
    tracing: bool = False


class LaneLost(Message, frozen=True):
    """The lane of a worker broke after the worker had taken a batch: what shall become of the batch?

    `losses` counts the workers that were lost with this batch. `final`: it cannot be tried again,
    because a part of its answer has gone to the client.
    """

    registration: str
    worker: str
    losses: int
    final: bool = False


class BatchOverdue(Message, frozen=True):
    """A batch was not answered in time; `taken`: the worker has read it from the lane."""

    registration: str
    worker: str
    taken: bool


class MayCall(Message, frozen=True):
    """A worker calls a model that waits for this call itself. Answered with a Verdict: "retry" or "fail".

    `chain` names the models that wait, oldest first, and `workers` those that can do nothing else.
    """

    model: str
    chain: list[str]
    workers: list[str]


class CallsWait(Message, frozen=True):
    """A worker's calls to `models`, made by the proxy `pid`, have waited for a while. Answered with StuckCalls."""

    pid: int
    worker: str
    models: list[str]


class StuckCalls(Message, frozen=True):
    """Calls to these models can never be answered; `text` is why."""

    models: list[str]
    text: str


class Detach(Message, frozen=True):
    """A proxy instance ends: Triton has unloaded its model, no batch of it is under way."""

    registration: str
    instance: str


#: What a proxy does with a batch that was lost or is overdue: send it to another worker, answer it
#: with the verdict's text, or go on waiting.
Action = Literal["retry", "fail", "wait"]


class Verdict(Message, frozen=True):
    """Answer to LaneLost, BatchOverdue and MayCall. `text` is for the clients, `wait_s` for how long to wait."""

    action: Action
    text: str = ""
    wait_s: float = 0.0


AnyMessage = Union[
    Register,
    Unregister,
    Scale,
    Rollback,
    LoadFromRepository,
    UnloadFromRepository,
    GetRepository,
    ListModels,
    GetStatus,
    GetLogs,
    Cancel,
    Shutdown,
    Reload,
    Progress,
    Registered,
    Done,
    Models,
    Repository,
    Status,
    LogLines,
    Reloaded,
    Failure,
    WorkerHello,
    LoadModel,
    WorkerReady,
    WorkerFailed,
    WorkerUnrecoverable,
    WorkerSpent,
    WithdrawLane,
    WorkerEnded,
    StartWorker,
    EndWorker,
    Released,
    Attach,
    Attached,
    LaneLost,
    BatchOverdue,
    MayCall,
    CallsWait,
    StuckCalls,
    Detach,
    Verdict,
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
