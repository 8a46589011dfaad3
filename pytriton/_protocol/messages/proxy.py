"""The messages between proxies and the dispatcher. Both also receive `Failure`."""

from __future__ import annotations

from typing import Literal, Optional, Union

import msgspec

from pytriton._protocol.messages.base import PROTOCOL, Message
from pytriton._protocol.messages.worker import AskReadiness, Readiness


class Attach(Message, frozen=True):
    """A proxy instance asks for a lane. `lost` names the worker it could not reach, if any.

    `batch`: a batch is waiting. That resumes a suspended model; without it, the proxy of a suspended model gets no
    lane.

    `registration` is what the dispatcher wrote into the model's configuration: a model that
    replaces another one of the same name has its own registration.
    """

    registration: str
    instance: str
    pid: int = 0
    lost: Optional[str] = None
    #: Workers that are waiting for this very batch.
    avoid: list[str] = msgspec.field(default_factory=list)
    #: The model's version; relevant if each version has its own workers.
    version: int = 0
    batch: bool = False
    protocol: int = PROTOCOL


class Attached(Message, frozen=True):
    """Connect to the worker that listens at `lane_path`; "": the model is suspended, ask again when there is a batch.

    `execution_timeout_s`: report a batch as overdue after this time without an answer.
    `tracing`: tritonserver traces with OpenTelemetry, so pass each request's trace to the worker.
    """

    worker: str
    lane_path: str
    execution_timeout_s: Optional[float] = None
    tracing: bool = False


class LaneLost(Message, frozen=True):
    """The lane of a worker broke after the worker had received a batch. Ask what to do with the batch.

    `losses` counts the workers lost with this batch, including this one; `requests` its unanswered requests.
    After the first loss, its requests are retried one by one, each with its own LaneLost: `in_row`
    counts those that lost a worker one after the other, including this one. `final`: it cannot be retried,
    because a part of its answer has been sent to the client. `request_id` is set if there is only one request.
    """

    registration: str
    worker: str
    losses: int
    final: bool = False
    requests: int = 1
    in_row: int = 0
    request_id: str = ""


class BatchOverdue(Message, frozen=True):
    """A batch was not answered in time; `taken`: the worker has read it from the lane.

    `taken_ms`: how long the dispatcher has known that. The other fields are as in LaneLost, but `losses` counts only
    earlier losses.
    """

    registration: str
    worker: str
    taken: bool
    losses: int = 0
    final: bool = False
    requests: int = 1
    in_row: int = 0
    taken_ms: int = 0
    request_id: str = ""


class MayCall(Message, frozen=True):
    """A worker calls a model that is itself waiting for this call. Answered with a Verdict: "retry" or "fail".

    `chain` lists the waiting models, oldest first, and `workers` those blocked by them.
    """

    model: str
    chain: list[str]
    workers: list[str]


class CallsWait(Message, frozen=True):
    """A worker's calls to `models`, made by the proxy `pid`, have been waiting for a while. Answered with StuckCalls.

    `proxy` distinguishes the proxies in one process (tritonserver).
    """

    pid: int
    worker: str
    models: list[str]
    proxy: str = ""


class StuckCalls(Message, frozen=True):
    """Calls to these models can never be answered; `text` says why."""

    models: list[str]
    text: str


class Detach(Message, frozen=True):
    """A proxy instance exits: Triton has unloaded its model, and no batch is in flight."""

    registration: str
    instance: str


#: What a proxy does with a batch that was lost or is overdue: send it to another worker, answer it with the verdict's
#: text, or keep waiting.
Action = Literal["retry", "fail", "wait"]


class Verdict(Message, frozen=True):
    """Answer to LaneLost, BatchOverdue and MayCall. `text` is for the clients, `wait_s` is how long to wait.

    A batch that its worker had received is retried request by request. `whole`: fail not only this request, but the rest
    of its batch.
    """

    action: Action
    text: str = ""
    wait_s: float = 0.0
    whole: bool = False


#: All messages sent or received by proxies, except Failure.
WithProxy = Union[
    Attach,
    Attached,
    LaneLost,
    BatchOverdue,
    MayCall,
    CallsWait,
    StuckCalls,
    Detach,
    Verdict,
    AskReadiness,
    Readiness,
]
