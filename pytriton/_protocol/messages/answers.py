"""The dispatcher's answers to clients: the state of models, workers and the daemon."""

from __future__ import annotations

from typing import Any, Optional, Union

import msgspec

from pytriton._protocol.messages.base import Message
from pytriton._protocol.messages.events import EventList, Explanation
from pytriton._protocol.messages.metrics import MemoryInfo, MetricsSnapshot
from pytriton._protocol.messages.model_spec import Lease, ModelSpec
from pytriton._protocol.messages.requests import Profiled, Requests


class Progress(Message, frozen=True):
    """The progress of a registration: `done` of `total` workers have finished `stage`."""

    stage: str
    text: str
    done: int = 0
    total: int = 0


class WorkerExit(msgspec.Struct, frozen=True):
    """The unrequested exit of a worker.

    `at` is seconds since the epoch, `peak_memory` bytes, `lines` its last output, including traces
    of Python's faulthandler.
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


#: The states in which tritonserver accepts requests for a model.
SERVED_STATES = ("ready", "degraded", "suspended", "resuming")


class InstanceInfo(msgspec.Struct, frozen=True):
    """One instance of a model, or one of its standby workers.

    `lanes` counts the attached proxies; `restarts` the replaced workers; `batches` those answered by the current
    worker; `busy_s` is how long its current batch has been running.
    """

    index: int
    state: str
    pid: Optional[int]
    device: Optional[str] = None
    lanes: int = 0
    restarts: int = 0
    #: Why the last worker exited, if not on request.
    last_exit: Optional[str] = None
    #: A standby worker beyond the model's instances, kept to take over.
    standby: bool = False
    batches: int = 0
    busy_s: Optional[float] = None
    #: The most recent exits, oldest first.
    exits: list[WorkerExit] = []
    #: The version it serves, if each version of a model has its own workers.
    version: Optional[int] = None
    #: Number of workers in a row that exited without answering a batch; 0 once the current one has.
    consecutive_exits: int = 0
    #: When the next worker is started, seconds since the epoch; None: no back-off in progress.
    next_try_at: Optional[float] = None


class ModelInfo(msgspec.Struct, frozen=True):
    """One model as the dispatcher sees it."""

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
    #: "tritonserver": one of its own backends serves the model, so there are no worker instances; "": not served,
    #: because a model of a model repository could not be loaded.
    served_by: str = "workers"
    #: All versions served, if there are several.
    versions: list[int] = []
    #: How its number of instances follows its load, and what limits that; empty: it does not autoscale.
    scaling: str = ""
    #: It serves provisionally: it is rolled back unless confirmed.
    lease: Optional[Lease] = None
    #: Since when it has been loading, in seconds since the epoch, if its state is "restoring" or "loading"; 0: it is
    #: queued.
    loading_since: float = 0.0
    #: Number of compute threads of the libraries in each worker; 0: the libraries' default, or set by the user.
    threads: int = 0


class RetiringServer(msgspec.Struct, frozen=True):
    """A replaced tritonserver that is finishing its in-flight requests.

    Attributes:
        since: when it was replaced, seconds since the epoch
        until: when it is terminated, even with requests in flight
        connections: open client connections
        requests: in-flight requests
    """

    pid: int
    since: float
    until: float
    connections: int = 0
    requests: int = 0


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


class ServerReplaced(Message, frozen=True):
    """Answer to ReplaceServer: process `pid` serves in place of `former`, which may still be retiring."""

    pid: int
    former: int


class Registered(Message, frozen=True):
    """The model is now serving requests."""

    model: ModelInfo


class Done(Message, frozen=True):
    """The request was carried out."""


class Models(Message, frozen=True):
    """Answer to ListModels, in the order of registration."""

    models: list[ModelInfo]


class RepositoryModel(msgspec.Struct, frozen=True):
    """One model of the daemon's model repositories.

    `state`: loading, ready, unloading, unloaded or failed (`reason` says why). `served_by`: "tritonserver" or
    "workers"; empty if it is not served. `repository`: the repository it was found in; empty if it has been removed.
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
    #: The state directory; empty if persistence is disabled.
    state_dir: str = ""
    #: Problems that need attention.
    problems: list[str] = msgspec.field(default_factory=list)
    #: The address where clients with a key may control the daemon; empty: none.
    control_tcp: str = ""
    #: The address of the management server; empty: none.
    management_urls: list[str] = msgspec.field(default_factory=list)
    #: The base URL of the OpenAI API, ending in "/v1"; empty: no model uses it.
    openai_url: str = ""
    #: The memory budgets, if any.
    memory: list[MemoryInfo] = msgspec.field(default_factory=list)


class KeptRegistration(msgspec.Struct, frozen=True):
    """A registration as persisted in the state directory.

    `digest` is identical for identical registrations, whatever their number of instances. `payloads` are
    included on request.
    """

    spec: ModelSpec
    digest: str
    payloads: list[bytes] = []


class Registrations(Message, frozen=True):
    """Answer to GetRegistrations, in the order of registration, without ephemeral models.

    `state` changes whenever a model is registered, unregistered or scaled. If it equals the client's `known` state,
    the list is empty.
    """

    registrations: list[KeptRegistration]
    state: str = ""


class LogLines(Message, frozen=True):
    """Answer to GetLogs: JSON lines, oldest first."""

    lines: list[str]


class Reloaded(Message, frozen=True):
    """Answer to Reload: the names of changed settings. If `problem` is set, nothing has changed."""

    applied: list[str]
    needs_restart: list[str]
    problem: str = ""


class Failure(Message, frozen=True):
    """The request failed. `kind` is one of `errors.ErrorKind`."""

    kind: str
    text: str
    #: The traceback from the process where the error occurred, if any.
    traceback: Optional[str] = None


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
