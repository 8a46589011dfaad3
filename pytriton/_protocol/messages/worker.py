"""The messages between the dispatcher and workers, hosted ones included."""

from __future__ import annotations

from typing import Any, Optional, Union

import msgspec

from pytriton._protocol.messages.base import PROTOCOL, Message
from pytriton._protocol.messages.model_spec import ModelSpec


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
    """The callable could not be loaded; the worker ends."""

    worker: str
    text: str
    traceback: str


class WorkerUnrecoverable(Message, frozen=True):
    """A callable raised PyTritonUnrecoverableError: the daemon has to stop."""

    worker: str
    text: str


#: The beginning of a `WorkerSpent.text`: there is no descriptor left for another proxy.
NO_LANE = "it cannot take another lane"


class WorkerSpent(Message, frozen=True):
    """A worker serves on, but should be replaced: it has passed a limit of its model."""

    worker: str
    text: str


class WithdrawLane(Message, frozen=True):
    """Close one lane between batches: its proxy shall go to another worker, which has none."""


class WorkerEnded(Message, frozen=True):
    """A hosted worker has ended, as a process tells by its exit. `how` completes "worker w1 …"."""

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


#: All that workers, and registrants for theirs, send and are sent.
WithWorker = Union[
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
]
