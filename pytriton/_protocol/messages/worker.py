"""The messages between the dispatcher and workers, including hosted workers and Triton Python models in workers."""

from __future__ import annotations

from typing import Any, Optional, Union

import msgspec

from pytriton._protocol.messages.base import PROTOCOL, Message
from pytriton._protocol.messages.model_spec import ModelSpec


class WorkerHello(Message, frozen=True):
    """A worker process has started and asks for its model."""

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
    #: tritonserver traces with OpenTelemetry: prepare to create spans.
    tracing: bool = False


class Completion(msgspec.Struct, frozen=True):
    """The part of a configuration that a model's file may supply, as the worker that loaded the file completed it."""

    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    max_batch_size: int
    dynamic_batching: Optional[dict[str, Any]] = None

    def applied_to(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a configuration with these entries in the place of its own."""
        entries = msgspec.structs.asdict(self)
        rest = {name: value for name, value in config.items() if name not in entries}
        return {**rest, **{name: value for name, value in entries.items() if value is not None}}


class WorkerReady(Message, frozen=True):
    """The callable is loaded and the worker listens for lanes.

    `completion` is set by workers of a model with `ModelSpec.completed_by_workers`.
    """

    worker: str
    completion: Optional[Completion] = None


class WorkerFailed(Message, frozen=True):
    """The callable could not be loaded; the worker exits."""

    worker: str
    text: str
    traceback: str


class WorkerUnrecoverable(Message, frozen=True):
    """A callable raised PyTritonUnrecoverableError: the daemon must stop."""

    worker: str
    text: str


#: Start of a `WorkerRecycleDue.text`: no descriptor is left for another proxy.
NO_LANE = "it cannot take another lane"


class WorkerRecycleDue(Message, frozen=True):
    """A worker keeps serving, but should be replaced: it has exceeded a limit of its model."""

    worker: str
    text: str


class WithdrawLane(Message, frozen=True):
    """Close one lane between batches, so that its proxy can move to a worker without a lane."""


class WorkerEnded(Message, frozen=True):
    """A hosted worker has exited, which a process would report by its exit status. `how` completes "worker w1 …"."""

    worker: str
    how: str


# ── dispatcher → registrant with workers in its threads, on the connection of its Register ─────────


class StartWorker(Message, frozen=True):
    """Run a worker in a thread. Combines a process start, its arguments and LoadModel.

    `lane_path` is where it listens for lanes; `gauge_path` is the file of its stats page, removed after
    its hello.
    """

    worker: str
    instance: int
    lane_path: str
    gauge_path: str


class EndWorker(Message, frozen=True):
    """Make a worker exit after its batch, as SIGTERM does for a process."""

    worker: str


class Released(Message, frozen=True):
    """The registration is over, for whatever reason; no more workers are started."""

    why: str


# ── a Triton Python model in a worker, about itself or other models ───────────────────────────


class WorkerReadiness(Message, frozen=True):
    """The result of a model's own `is_ready` has changed; `why` is the reason for people."""

    worker: str
    ready: bool
    why: str = ""


class LoadOther(Message, frozen=True):
    """A model requests to load or reload another one (pb_utils.load_model). Payload frames: the `files`.

    `config` is JSON; empty selects the one in the model's folder. Answered with Done when the model is served.
    """

    worker: str
    name: str
    config: str = ""
    #: "file:VERSION/NAME", as in Triton's repository API; the complete content of the model's folder.
    files: list[str] = msgspec.field(default_factory=list)


class UnloadOther(Message, frozen=True):
    """A model requests to unload another one (pb_utils.unload_model). Answered with Done when unloading has begun.

    `dependents`: also unload the models that an ensemble consists of.
    """

    worker: str
    name: str
    dependents: bool = False


class AskReadiness(Message, frozen=True):
    """Ask whether a model is ready; without a version, whether any version is. Answered with Readiness."""

    name: str
    version: str = ""


class Readiness(Message, frozen=True):
    """Answer to AskReadiness."""

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
