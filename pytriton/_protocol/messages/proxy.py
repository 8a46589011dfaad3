"""Messages between proxies and the dispatcher, which also answers with `Failure`."""

from __future__ import annotations

from typing import Literal, Optional, Union

import msgspec

from pytriton._protocol.messages.base import PROTOCOL, Message
from pytriton._protocol.messages.worker import AskReadiness, Readiness


class Attach(Message, frozen=True):
    """Request for a lane, from a proxy instance. `lost` is the worker that it could not reach, if any.

    `batch` says that a batch is waiting, which resumes a suspended model. Without a batch, the proxy of a suspended
    model gets no lane.

    `registration` is the value that the dispatcher wrote into the model's configuration: a model that replaces
    another one of the same name has a registration of its own.
    """

    registration: str
    instance: str
    pid: int = 0
    lost: Optional[str] = None
    #: Workers that wait for this batch to be answered, and so must not get it.
    avoid: list[str] = msgspec.field(default_factory=list)
    #: The model's version; relevant if each version has its own workers.
    version: int = 0
    batch: bool = False
    protocol: int = PROTOCOL


class Attached(Message, frozen=True):
    """Answer to Attach: connect to the worker that listens at `lane_path`.

    An empty `lane_path` means that the model is suspended: ask again when there is a batch. A batch that is not answered
    within `execution_timeout_s` must be reported as overdue. With `tracing`, tritonserver traces with OpenTelemetry: the
    proxy must pass the trace of each request to the worker.
    """

    worker: str
    lane_path: str
    execution_timeout_s: Optional[float] = None
    tracing: bool = False


class LaneLost(Message, frozen=True):
    """Report that the lane of a worker broke after the worker had received a batch. Answered with a Verdict.

    Attributes:
        lost_workers: number of workers lost with this batch, including this one
        final: the batch cannot be retried, because a part of its response has been sent to the client
        requests: number of its unanswered requests
        consecutive_losses: after the first loss, its requests are retried one by one, each with its own LaneLost; the
            number of consecutive ones that lost a worker, including this one
        request_id: the id of the request, if there is only one
    """

    registration: str
    worker: str
    lost_workers: int
    final: bool = False
    requests: int = 1
    consecutive_losses: int = 0
    request_id: str = ""


class BatchOverdue(Message, frozen=True):
    """Report that a batch was not answered in time. Answered with a Verdict. The other fields are those of LaneLost.

    Attributes:
        was_read: whether the worker has read the batch from its lane
        lost_workers: number of workers lost with this batch before
        read_ms: milliseconds since the proxy first saw that the worker had read it; 0 in the first report
    """

    registration: str
    worker: str
    was_read: bool
    lost_workers: int = 0
    final: bool = False
    requests: int = 1
    consecutive_losses: int = 0
    read_ms: int = 0
    request_id: str = ""


class MayCall(Message, frozen=True):
    """Query whether a worker may call a model that is itself waiting for the result of this call.

    Answered with a Verdict: "retry" (it may) or "fail". `chain` lists the waiting models, oldest first, and `workers`
    the workers that they block.
    """

    model: str
    chain: list[str]
    workers: list[str]


class CallsWait(Message, frozen=True):
    """Report that a worker's calls to `models` have been waiting for some time. Answered with StuckCalls.

    The calls were made by the proxy `proxy` in process `pid` (tritonserver).
    """

    pid: int
    worker: str
    models: list[str]
    proxy: str = ""


class StuckCalls(Message, frozen=True):
    """Answer to CallsWait: the models whose calls can never be answered, and the reason (`text`)."""

    models: list[str]
    text: str


class Detach(Message, frozen=True):
    """Report that a proxy instance is exiting: Triton has unloaded its model, and no batch is in flight."""

    registration: str
    instance: str


#: What a proxy does with a batch that was lost or is overdue: retry it with another worker, fail it with the text of the
#: verdict, or wait longer.
Action = Literal["retry", "fail", "wait"]


class Verdict(Message, frozen=True):
    """Answer to LaneLost, BatchOverdue and MayCall. `text` is the error for clients, `wait_s` how long to wait.

    A batch that its worker had received is retried request by request. With `fails_rest`, the remaining requests of the
    batch fail, too.
    """

    action: Action
    text: str = ""
    wait_s: float = 0.0
    fails_rest: bool = False


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
