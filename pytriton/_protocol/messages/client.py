"""Messages between clients and the dispatcher: each request, followed by its answer and the types used in it.

The dispatcher may send any number of Progress messages before the final answer: the type that the request names, Done
or Failure. GetMetrics and MetricsSnapshot are in metrics.py.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import msgspec

from pytriton._protocol.messages.base import PROTOCOL, Message
from pytriton._protocol.messages.metrics import GetMetrics, MemoryInfo, MetricsSnapshot
from pytriton._protocol.messages.model_spec import Autoscale, Lease, ModelSpec


class Progress(Message, frozen=True):
    """Progress of a registration: `done` of `total` workers have completed `stage`."""

    stage: str
    text: str
    done: int = 0
    total: int = 0


class Done(Message, frozen=True):
    """Answer to a request that succeeded."""


class Failure(Message, frozen=True):
    """Answer to a request that failed. `kind` is one of `errors.ErrorKind`."""

    kind: str
    text: str
    #: The traceback from the process where the error occurred, if any.
    traceback: Optional[str] = None


# ── registered models ─────────────────────────────────────────────────────────────────────────


class Offer(Message, frozen=True):
    """Request for permission to send a message of a certain size: ZeroMQ silently drops messages that are too large.

    `message_bytes` excludes payloads; `payload_bytes` is the size of the largest of `payloads` payloads. Sent before
    every message with a frame above `control.ALWAYS_ACCEPTED_BYTES`. Answered with Done or a Failure.
    """

    what: str
    message_bytes: int
    payload_bytes: int = 0
    payloads: int = 0


class Register(Message, frozen=True):
    """Request to serve a model. Payload frames: one pickled callable, or one for each instance.

    An ephemeral model is served until the sender's process exits, and is not persisted.
    """

    spec: ModelSpec
    replace: bool = False
    ephemeral: bool = False
    protocol: int = PROTOCOL


class Registered(Message, frozen=True):
    """Answer to Register: the model is now serving requests."""

    model: ModelInfo


class Unregister(Message, frozen=True):
    """Request to stop serving a model and to stop its workers."""

    name: str


class Scale(Message, frozen=True):
    """Request to change a model's number of instances. With `autoscale`, the number follows the load from then on."""

    name: str
    instances: int
    autoscale: Optional[Autoscale] = None


class Rollback(Message, frozen=True):
    """Request to roll a model back to the version before its last replacement."""

    name: str


class RenewLease(Message, frozen=True):
    """Request to renew a provisional registration: its time limit restarts. `share`, if set, is its new share of requests."""

    name: str
    lease: str
    share: Optional[float] = None


class EndLease(Message, frozen=True):
    """Request to make a provisional registration permanent (`keep`) or to roll it back. Answered when that is done."""

    name: str
    lease: str
    keep: bool


class Cancel(Message, frozen=True):
    """Request to cancel an earlier request on the same connection. The cancelled request gets no answer.

    Only Register can be cancelled: its workers exit, and the registration is undone. For other requests, this has no
    effect.
    """

    request_id: bytes


# ── models of model repositories ──────────────────────────────────────────────────────────────


class LoadFromRepository(Message, frozen=True):
    """Request to load or reload a model of a model repository. `config` overrides the configuration in its folder."""

    name: str
    config: Optional[dict[str, Any]] = None


class UnloadFromRepository(Message, frozen=True):
    """Request to stop serving a model of a model repository."""

    name: str


class GetRepository(Message, frozen=True):
    """Request for the models of the model repositories, answered with Repository."""


class RepositoryModel(msgspec.Struct, frozen=True):
    """One model of the daemon's model repositories.

    `state` is loading, ready, unloading, unloaded or failed (`reason` says why). `served_by` is "tritonserver" or
    "workers"; empty if the model is not served. `repository` is where the model was found; empty if it has been removed.
    """

    name: str
    repository: str
    versions: list[int]
    state: str
    served_by: str
    reason: str = ""


class Repository(Message, frozen=True):
    """Answer to GetRepository: the models, sorted by name."""

    models: list[RepositoryModel]


# ── the state of models, workers and the daemon ───────────────────────────────────────────────


class ListModels(Message, frozen=True):
    """Request for the list of models, answered with Models."""


class Models(Message, frozen=True):
    """Answer to ListModels: the models, in the order of registration."""

    models: list[ModelInfo]


#: The states in which tritonserver accepts requests for a model.
SERVED_STATES = ("ready", "degraded", "suspended", "resuming")


class ModelInfo(msgspec.Struct, frozen=True):
    """The state of one model, with its instances."""

    name: str
    version: int
    state: str
    instances: list[InstanceInfo]
    url: str = ""
    #: Triton's model configuration as loaded, in JSON form.
    config: dict[str, Any] = {}
    python: str = ""
    registered_at: float = 0.0
    #: The model's log file in the runtime directory.
    log_file: str = ""
    #: Why the model is "degraded" (it serves, but workers crash or are not ready) or "not_ready" (no worker serves), or
    #: why it could not be restored when the daemon started, or loaded from a repository ("failed").
    error: Optional[str] = None
    #: "thread": its workers are threads of the registering process, which `pid` of its instances identifies.
    isolation: str = "process"
    #: "tritonserver": one of tritonserver's own backends serves the model, so it has no workers; "": the model is in a
    #: model repository and could not be loaded.
    served_by: str = "workers"
    #: All versions served, if there are several.
    versions: list[int] = []
    #: How the number of instances follows the load, and what limits it; empty if the model does not autoscale.
    scaling: str = ""
    #: Set if the registration is provisional: it is rolled back unless confirmed.
    lease: Optional[Lease] = None
    #: If the state is "restoring" or "loading": when loading began, in seconds since the epoch; 0: it is queued.
    loading_since: float = 0.0
    #: Number of compute threads of the libraries in each worker; 0: the libraries' default, or set by the user.
    threads: int = 0
    #: Path of the HTTP route, if it is a typed function.
    route: str = ""


class InstanceInfo(msgspec.Struct, frozen=True):
    """One instance of a model, or one of its standby workers.

    `lanes` is the number of attached proxies, `restarts` the number of replaced workers, and `batches` the number of
    batches that the current worker has answered. `busy_s` is how long its current batch has been running, in seconds.
    """

    index: int
    state: str
    pid: Optional[int]
    device: Optional[str] = None
    lanes: int = 0
    restarts: int = 0
    #: Why the last worker exited, if not on request.
    last_exit: Optional[str] = None
    #: It is a standby worker beyond the model's instances, ready to take over.
    standby: bool = False
    batches: int = 0
    busy_s: Optional[float] = None
    #: The most recent exits, oldest first.
    exits: list[WorkerExit] = []
    #: The version it serves, if each version of a model has its own workers.
    version: Optional[int] = None
    #: Number of workers in a row that exited without answering a batch; 0 once the current one has.
    consecutive_exits: int = 0
    #: When the next worker is started, in seconds since the epoch; None if no back-off is in progress.
    next_try_at: Optional[float] = None


class WorkerExit(msgspec.Struct, frozen=True):
    """An unrequested exit of a worker.

    `at` is in seconds since the epoch, `peak_memory` in bytes. `lines` is the last output of the worker, including
    traces of Python's faulthandler.
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


class GetStatus(Message, frozen=True):
    """Request for the state of the daemon, its tritonserver and its models, answered with Status.

    Attributes:
        models: whether to include the models
    """

    models: bool = True


class Status(Message, frozen=True):
    """Answer to GetStatus. Times are in seconds since the epoch."""

    version: str
    pid: int
    python: str
    runtime_dir: str
    state: str
    started_at: float
    server: ServerInfo
    models: list[ModelInfo]
    #: The state directory; empty if persistence is disabled.
    state_dir: str = ""
    #: Problems that need attention.
    problems: list[str] = msgspec.field(default_factory=list)
    #: The TCP address on which clients with a key can control the daemon; empty if there is none.
    control_tcp: str = ""
    #: The addresses of the management server.
    management_urls: list[str] = msgspec.field(default_factory=list)
    #: The base URL of the OpenAI API, ending in "/v1"; empty if no model uses it.
    openai_url: str = ""
    #: The memory budgets, if any.
    memory: list[MemoryInfo] = msgspec.field(default_factory=list)


class ServerInfo(msgspec.Struct, frozen=True):
    """The tritonserver that the daemon owns. An empty URL means that the endpoint is disabled."""

    state: str
    pid: Optional[int]
    version: str = ""
    http_url: str = ""
    grpc_url: str = ""
    metrics_url: str = ""
    binary: str = ""
    retiring: list[RetiringServer] = []


class RetiringServer(msgspec.Struct, frozen=True):
    """A replaced tritonserver that is finishing its in-flight requests.

    Attributes:
        since: when it was replaced, in seconds since the epoch
        until: when it is terminated, even with requests in flight
        connections: number of open client connections
        requests: number of in-flight requests
    """

    pid: int
    since: float
    until: float
    connections: int = 0
    requests: int = 0


class GetLogs(Message, frozen=True):
    """Request for the last `lines` log lines of a model, or of the daemon if `model` is None."""

    model: Optional[str] = None
    lines: int = 100


class LogLines(Message, frozen=True):
    """Answer to GetLogs: the log lines (JSON), oldest first."""

    lines: list[str]


class GetRegistrations(Message, frozen=True):
    """Request for the registrations with these names (empty: all), with their payloads if `payloads` is set.

    If `known` is the `state` of an earlier answer, registrations are sent only if they have changed since.
    """

    names: list[str] = msgspec.field(default_factory=list)
    payloads: bool = False
    known: str = ""


class Registrations(Message, frozen=True):
    """Answer to GetRegistrations, in the order of registration, without ephemeral models.

    `state` changes whenever a model is registered, unregistered or scaled. If it equals `known` of the request, the
    list is empty.
    """

    registrations: list[KeptRegistration]
    state: str = ""


class KeptRegistration(msgspec.Struct, frozen=True):
    """A registration as persisted in the state directory.

    `digest` is the same for registrations that differ only in their number of instances. `payloads` are included
    on request.
    """

    spec: ModelSpec
    digest: str
    payloads: list[bytes] = []


# ── events: the dispatcher's decisions and observations ───────────────────────────────────────


class Explain(Message, frozen=True):
    """Request for an explanation of a model's state, and for up to `events` of its most recent events."""

    model: str
    events: int = 100


class Explanation(Message, frozen=True):
    """Answer to Explain: a verdict in one sentence, the findings (worst first), and the events (oldest first)."""

    model: str
    verdict: str
    findings: list[Finding]
    events: list[Event]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding about a model.

    Attributes:
        severity: "down": no requests are served; "degraded": something is missing or fails; "notice": worth knowing
        about: a keyword for programs, such as "crash_loop"
        text: a description with the reason
        advice: what to do
        at: when it began, in seconds since the epoch
        instance: the affected instance
    """

    severity: str
    about: str
    text: str
    advice: str = ""
    at: Optional[float] = None
    instance: Optional[int] = None


class GetEvents(Message, frozen=True):
    """Request for up to `limit` of the most recent events.

    Attributes:
        model: only events about this model; None: events about all models and the daemon itself
        kinds: only events of these kinds; empty: all kinds
        since: only events at or after this time, in seconds since the epoch
        after: only events with a higher serial number
    """

    model: Optional[str] = None
    kinds: list[str] = msgspec.field(default_factory=list)
    since: float = 0.0
    after: int = 0
    limit: int = 100


class EventList(Message, frozen=True):
    """Answer to GetEvents: the events, oldest first."""

    events: list[Event]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event: a decision the daemon made, or something it observed.

    Attributes:
        serial: serial number, which orders even simultaneous events and increases across restarts of the daemon
        at: time in seconds since the epoch
        kind: name of its kind, declared in `dispatcher/telemetry/events/kinds.py`
        model: the affected model; "": the daemon itself
        version: the model's version
        instance: the model's instance; None: the model as a whole
        worker: the worker's name, unique within one run of the daemon
        who: who caused it: a user and process, the name of a key, or a part of the daemon
        reason: the reason, in words
        numbers: values by name; the kind documents their meaning
        code: the reason for programs; "" if the kind has no codes
    """

    serial: int
    at: float
    kind: str
    model: str = ""
    version: Optional[int] = None
    instance: Optional[int] = None
    worker: str = ""
    who: str = ""
    reason: str = ""
    numbers: dict[str, Union[int, float]] = {}
    code: str = ""


# ── single requests, and profiles of workers ──────────────────────────────────────────────────


class LogRequests(Message, frozen=True):
    """Request to enable or disable a model's access log."""

    name: str
    on: bool


class GetRequests(Message, frozen=True):
    """Request for a model's slowest and most recent failed requests, and the state of its access log."""

    model: str


class Requests(Message, frozen=True):
    """Answer to GetRequests.

    Attributes:
        access_log: whether every request is written to `file`, one JSON object per line.
        logged, left_out: numbers of requests logged since the daemon's start, and dropped for lack of space or time.
        slowest: the slowest sampled requests of the last hour, slowest first.
        failed: the most recent failed requests, newest first.
    """

    model: str
    access_log: bool
    file: str
    logged: int = 0
    left_out: int = 0
    slowest: list[RequestEntry] = msgspec.field(default_factory=list)
    failed: list[RequestEntry] = msgspec.field(default_factory=list)


class RequestEntry(msgspec.Struct, frozen=True):
    """One request that a worker has answered.

    Attributes:
        time: when it was answered, in seconds since the epoch.
        id: from its client or its trace, or generated by the daemon.
        status: "ok", or why it failed: callable, input, result, timeout, unrecoverable.
        queue_ns: time from tritonserver passing its batch to the proxy until the start of the call; None: unknown.
        compute_ns: duration of its call, including reading inputs and writing outputs; for a stream, until its end.
        batch_requests, batch_rows: totals of that call.
        bytes_out: size of the outputs; None: not counted.
        error: the name of the exception type that caused the failure, if any, without its text; `HTTPError` with its status.
    """

    time: float
    id: str
    model: str
    version: int
    instance: int
    status: str
    queue_ns: Optional[int]
    compute_ns: int
    batch_requests: int
    batch_rows: int
    bytes_in: int
    bytes_out: Optional[int]
    error: str = ""


class ProfileWorker(Message, frozen=True):
    """Request to profile the worker of an instance (default: the first that is serving) for some seconds."""

    model: str
    seconds: float = 10.0
    instance: Optional[int] = None


class Profiled(Message, frozen=True):
    """Answer to ProfileWorker. `stacks` is in py-spy's "raw" format, without rare stacks if there are too many."""

    instance: int
    worker: str
    pid: int
    seconds: float
    rate: int
    stacks: str
    left_out: int = 0


# ── the daemon and its tritonserver ───────────────────────────────────────────────────────────


class Shutdown(Message, frozen=True):
    """Request to stop the daemon as SIGTERM does. Answered before the daemon stops."""


class Drain(Message, frozen=True):
    """Request to drain the daemon: it reports not ready, refuses registrations, keeps serving for `settle_s`, then stops.

    Attributes:
        settle_s: how long requests are still accepted, so that load balancers notice, in seconds
        timeout_s: how long to wait for in-flight requests after that, in seconds; None: grace_period_s
        stop: if False, the daemon does not stop; the request is answered after settle_s
    """

    settle_s: float = 5.0
    timeout_s: Optional[float] = None
    stop: bool = True


class Upgrade(Message, frozen=True):
    """Request to upgrade the daemon to the installed version of pytriton-daemon while all models keep serving.

    Answered with Done or a Failure before the upgrade begins. The event "upgraded" or "upgrade_failed" reports the
    result.

    Attributes:
        python: the interpreter of another environment to upgrade to
        wait_s: how long to wait for changes in progress, in seconds
    """

    python: Optional[str] = None
    wait_s: float = 30.0


class Reload(Message, frozen=True):
    """Request to reload the settings as SIGHUP does. Answered with Reloaded."""


class Reloaded(Message, frozen=True):
    """Answer to Reload: the names of the changed settings. If `problem` is set, nothing was changed."""

    applied: list[str]
    needs_restart: list[str]
    problem: str = ""


class ReplaceServer(Message, frozen=True):
    """Request to replace the running tritonserver with a new one without losing a request.

    Answered with ServerReplaced once the new one serves.

    Attributes:
        force: replace even while sequences are in progress, whose next requests then fail
    """

    force: bool = False


class ServerReplaced(Message, frozen=True):
    """Answer to ReplaceServer: process `pid` has replaced `former`, which may still be finishing its requests."""

    pid: int
    former: int


#: Messages that change models or the daemon; they wait while the daemon is being upgraded.
Changing = Union[
    Register,
    Unregister,
    Scale,
    Rollback,
    EndLease,
    LoadFromRepository,
    UnloadFromRepository,
    LogRequests,
    ProfileWorker,
    Reload,
    ReplaceServer,
]
#: All messages sent by clients.
FromClient = Union[
    Changing,
    Offer,
    RenewLease,
    GetRepository,
    ListModels,
    GetStatus,
    GetMetrics,
    GetLogs,
    GetRegistrations,
    Explain,
    GetEvents,
    GetRequests,
    Cancel,
    Shutdown,
    Drain,
    Upgrade,
]
#: All messages sent to clients.
ToClient = Union[
    Progress,
    Registered,
    Done,
    ServerReplaced,
    Models,
    Repository,
    Status,
    MetricsSnapshot,
    LogLines,
    Registrations,
    Explanation,
    EventList,
    Requests,
    Profiled,
    Reloaded,
    Failure,
]
