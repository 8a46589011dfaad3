"""Messages between the dispatcher and workers, including those of hosted workers and of Triton Python models."""

from __future__ import annotations

import enum
from typing import Any, Optional, Union

import msgspec

from pytriton._protocol.messages.base import PROTOCOL, Message
from pytriton._protocol.messages.model_spec import ModelSpec


class WorkerHello(Message, frozen=True):
    """First message of a worker: it has started and requests its model."""

    worker: str
    pid: int
    python_version: str
    protocol: int = PROTOCOL


class LoadModel(Message, frozen=True):
    """Answer to WorkerHello: the model to load. Payload frames: the pickled callable, and its check if there is one."""

    spec: ModelSpec
    instance: int
    #: The path of the unix socket on which the worker listens for lanes.
    lane_path: str
    #: tritonserver traces with OpenTelemetry, so the worker must create spans.
    tracing: bool = False


class Completion(msgspec.Struct, frozen=True):
    """The part of a model configuration that a worker has completed from the model's file."""

    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    max_batch_size: int
    dynamic_batching: Optional[dict[str, Any]] = None

    def applied_to(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a model configuration with these completed entries."""
        entries = msgspec.structs.asdict(self)
        rest = {name: value for name, value in config.items() if name not in entries}
        return {**rest, **{name: value for name, value in entries.items() if value is not None}}


class WorkerReady(Message, frozen=True):
    """A worker's report that its callable is loaded and that it listens for lanes.

    `completion` is set by workers of a model with `ModelSpec.completed_by_workers`.
    """

    worker: str
    completion: Optional[Completion] = None


class WorkerFailed(Message, frozen=True):
    """A worker's report that its callable could not be loaded. The worker then exits."""

    worker: str
    text: str
    traceback: str


class WorkerUnrecoverable(Message, frozen=True):
    """A worker's report that its callable raised PyTritonUnrecoverableError. The daemon must stop."""

    worker: str
    text: str


class RecycleReason(enum.Enum):
    """Why a worker is due for recycling. This is the `code` of the event `recycle_due`."""

    MAX_BATCHES = "max_batches"
    MEMORY = "memory"
    NO_LANE = "no_lane"
    PROTOCOL = "protocol"
    GPU = "gpu"


class WorkerRecycleDue(Message, frozen=True):
    """A worker's request to be replaced. The worker keeps serving until then. `text` explains the reason to users."""

    worker: str
    reason: RecycleReason
    text: str


class WithdrawLane(Message, frozen=True):
    """Request to close one lane between batches, so that its proxy can attach to a worker without any lane."""


class WorkerEnded(Message, frozen=True):
    """Report that a hosted worker has exited. It has no exit status; `how` completes the sentence "worker w1 …"."""

    worker: str
    how: str


# ── dispatcher → registrant with workers in its threads, on the connection of its Register ─────────


class StartWorker(Message, frozen=True):
    """Request to run a worker in a thread, sent instead of starting a worker process and sending it LoadModel.

    `lane_path` is where the worker listens for lanes. `gauge_path` is the file of its stats page, which is removed
    after its WorkerHello.
    """

    worker: str
    instance: int
    lane_path: str
    gauge_path: str


class EndWorker(Message, frozen=True):
    """Request to stop a worker after its current batch, as SIGTERM does for a process."""

    worker: str


class Released(Message, frozen=True):
    """Report that the registration has ended; no more workers are started. `why` is the reason."""

    why: str


# ── a Triton Python model in a worker, about itself or other models ───────────────────────────


class WorkerReadiness(Message, frozen=True):
    """Report that the result of a model's own `is_ready` has changed. `why` explains it to users."""

    worker: str
    ready: bool
    why: str = ""


class LoadOther(Message, frozen=True):
    """A model's request to load or reload another one (pb_utils.load_model). Payload frames: the content of `files`.

    `config` is JSON; if empty, the configuration in the model's folder is used. Answered with Done once the model serves.
    """

    worker: str
    name: str
    config: str = ""
    #: The complete content of the model's folder, named "file:VERSION/NAME" as in Triton's repository API.
    files: list[str] = msgspec.field(default_factory=list)


class UnloadOther(Message, frozen=True):
    """A model's request to unload another one (pb_utils.unload_model). Answered with Done when unloading has begun.

    With `dependents`, the models that an ensemble consists of are unloaded, too.
    """

    worker: str
    name: str
    dependents: bool = False


class AskReadiness(Message, frozen=True):
    """Query whether a version of a model (or, without a version, any version) is ready. Answered with Readiness."""

    name: str
    version: str = ""


class Readiness(Message, frozen=True):
    """Answer to AskReadiness: whether the model is ready."""

    ready: bool


#: All messages sent or received by workers, for their models, and by registrants on their behalf.
WithWorker = Union[
    WorkerHello,
    LoadModel,
    WorkerReady,
    WorkerFailed,
    WorkerUnrecoverable,
    WorkerRecycleDue,
    WithdrawLane,
    WorkerEnded,
    StartWorker,
    EndWorker,
    Released,
    WorkerReadiness,
    LoadOther,
    UnloadOther,
    AskReadiness,
    Readiness,
]
