"""The messages between proxies and the dispatcher; both also get `Failure`."""

from __future__ import annotations

from typing import Literal, Optional, Union

import msgspec

from pytriton._protocol.messages.base import PROTOCOL, Message
from pytriton._protocol.messages.python_model import AskReadiness, Readiness


class Attach(Message, frozen=True):
    """A proxy instance asks for a lane. `lost` names the worker that it could not reach, if there was one.

    `batch`: it has one that waits for the worker. A model that sleeps wakes then; else its proxy gets no lane.

    `registration` is what the dispatcher wrote into the model's configuration: a model that
    replaces another one of the same name has a registration of its own.
    """

    registration: str
    instance: str
    pid: int = 0
    lost: Optional[str] = None
    #: Workers that wait for the very batch that is to be served.
    avoid: list[str] = msgspec.field(default_factory=list)
    #: Of the model; matters where each version has workers of its own.
    version: int = 0
    batch: bool = False
    protocol: int = PROTOCOL


class Attached(Message, frozen=True):
    """Connect to the worker that listens at `lane_path`; "": the model sleeps, ask again when there is a batch.

    `execution_timeout_s`: report a batch as overdue that is not answered for so long.
    `tracing`: tritonserver traces with OpenTelemetry, so tell the worker of each request's trace.
    """

    worker: str
    lane_path: str
    execution_timeout_s: Optional[float] = None
    tracing: bool = False


class LaneLost(Message, frozen=True):
    """The lane of a worker broke after the worker had taken a batch: what shall become of the batch?

    `losses` counts the workers that were lost with it, this one included; `requests` those of it that have not been
    answered. After the first loss they are tried again, each by itself, and each is asked about by itself: `in_row`
    counts those of them that have lost a worker one after the other, this one included. `final`: it cannot be tried
    again, because a part of its answer has gone to the client. `request_id`: of the request, where it is only one.
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

    `taken_ms`: for how long the dispatcher has known that. The others are as in LaneLost, but `losses` are those
    before.
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
    """A worker calls a model that waits for this call itself. Answered with a Verdict: "retry" or "fail".

    `chain` names the models that wait, oldest first, and `workers` those that can do nothing else.
    """

    model: str
    chain: list[str]
    workers: list[str]


class CallsWait(Message, frozen=True):
    """A worker's calls to `models`, made by the proxy `pid`, have waited for a while. Answered with StuckCalls.

    `proxy` tells the proxies apart that run in one process: tritonserver's.
    """

    pid: int
    worker: str
    models: list[str]
    proxy: str = ""


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
    """Answer to LaneLost, BatchOverdue and MayCall. `text` is for the clients, `wait_s` for how long to wait.

    What its worker had taken is tried again request by request. `whole`: not only this request fails, but all of its
    batch that is left.
    """

    action: Action
    text: str = ""
    wait_s: float = 0.0
    whole: bool = False


#: All that proxies send and are sent, but for a Failure.
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
