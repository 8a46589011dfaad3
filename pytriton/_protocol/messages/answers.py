"""The dispatcher's answers to clients: the state of models, workers and the daemon."""

from __future__ import annotations

from typing import Any, Optional, Union

import msgspec

from pytriton._protocol.messages.base import Message
from pytriton._protocol.messages.events import EventList, Explanation
from pytriton._protocol.messages.figures import Figures, MemoryInfo
from pytriton._protocol.messages.model_spec import ModelSpec, Trial
from pytriton._protocol.messages.requests import Profiled, Requests


class Progress(Message, frozen=True):
    """The progress of a registration: `done` of `total` workers have finished `stage`."""

    stage: str
    text: str
    done: int = 0
    total: int = 0


class WorkerEnd(msgspec.Struct, frozen=True):
    """The end of a worker that was not told to end.

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


#: The states in which tritonserver takes requests for a model.
SERVED_STATES = ("ready", "degraded", "asleep", "waking")


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
    #: Workers that ended in a row, none of which had answered a batch; 0 once the present one has.
    fruitless_ends: int = 0
    #: When the next worker is started, seconds since the epoch; None: no pause is under way.
    next_try_at: Optional[float] = None


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
    #: Why the model is "degraded" (it serves, but workers crash or are not ready) or "unready" (no worker serves), or
    #: why it could not be restored after a start of the daemon, or loaded from a repository ("failed").
    error: Optional[str] = None
    #: "thread": its workers are threads of the process that registered it, which `pid` of its instances names.
    isolation: str = "process"
    #: "tritonserver": one of its own backends serves the model, so there are no instances of ours; "": nobody does,
    #: for it lies in a model repository and could not be loaded.
    served_by: str = "workers"
    #: All versions that are served, when there are several.
    versions: list[int] = []
    #: How its number of instances follows its load, and what keeps it from that; empty: it does not.
    scaling: str = ""
    #: It serves, but is taken back unless it is said to stay.
    trial: Optional[Trial] = None
    #: Since when it is being loaded, in seconds since the epoch, if its state is "restoring" or "loading"; 0: it waits
    #: for its turn.
    loading_since: float = 0.0
    #: With how many threads the libraries of each worker compute; 0: with as many as they take, or the user has said.
    threads: int = 0


class RetiringServer(msgspec.Struct, frozen=True):
    """A tritonserver that another one has taken the place of, and that goes on with what it has under way.

    Attributes:
        since: when it was replaced, seconds since the epoch
        until: when it is ended, whatever it has under way then
        connections: that clients still have with it
        requests: that it has not answered
    """

    pid: int
    since: float
    until: float
    connections: int = 0
    requests: int = 0


class ServerInfo(msgspec.Struct, frozen=True):
    """The tritonserver that the daemon owns. An empty URL: that endpoint is switched off."""

    state: str
    pid: Optional[int]
    version: str = ""
    http_url: str = ""
    grpc_url: str = ""
    metrics_url: str = ""
    binary: str = ""
    retiring: list[RetiringServer] = []


class ServerReplaced(Message, frozen=True):
    """Answer to ReplaceServer: the process `pid` serves in the place of `former`, which may still retire."""

    pid: int
    former: int


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
    problems: list[str] = msgspec.field(default_factory=list)
    #: Where clients with a key may control the daemon; empty: nowhere.
    control_tcp: str = ""
    #: Where the operations server answers; empty: nowhere.
    operations: list[str] = msgspec.field(default_factory=list)
    #: Where the OpenAI API is served, with "/v1"; empty: no model has asked for it.
    openai_url: str = ""
    #: The budgets of memory, if there are any.
    memory: list[MemoryInfo] = msgspec.field(default_factory=list)


class KeptRegistration(msgspec.Struct, frozen=True):
    """A registration as the state directory keeps it.

    `digest` is the same wherever the same was registered, with whatever number of instances. `payloads` are
    there if they were asked for.
    """

    spec: ModelSpec
    digest: str
    payloads: list[bytes] = []


class Registrations(Message, frozen=True):
    """Answer to GetRegistrations, in the order of registration; temporary models are left out.

    `state` is another one as soon as something was registered or unregistered, or has another number of instances. If
    it is what the client has said that it knows, the list is empty.
    """

    registrations: list[KeptRegistration]
    state: str = ""


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


#: All that a client is sent.
ToClient = Union[
    Progress,
    Registered,
    Done,
    ServerReplaced,
    Models,
    Repository,
    Status,
    Figures,
    LogLines,
    Registrations,
    Explanation,
    EventList,
    Requests,
    Profiled,
    Reloaded,
    Failure,
]
