"""Control messages: every message that the dispatcher sends or receives, and their bytes.

Who sends what to whom (each name is one frozen type of `client`, `answers`, `worker`, `python_model` or
`proxy`, the modules of this package, which re-exports all their names)::

    client ── Register, Unregister, Scale, Rollback, ListModels, GetStatus, GetLogs, Cancel, Shutdown ──▶ dispatcher
        client ── LoadFromRepository, UnloadFromRepository, GetRepository; before large messages: Offer ──▶ dispatcher
    client ── RenewLease, EndLease, Drain, Upgrade, Reload, ReplaceServer ──▶ dispatcher
        client ── Explain, GetEvents ──▶ dispatcher, which answers with Explanation, EventList
        client ── GetMetrics, GetRegistrations ──▶ dispatcher, which answers with MetricsSnapshot, Registrations
        client ── LogRequests, GetRequests, ProfileWorker ──▶ dispatcher, which answers with Done, Requests, Profiled
    client ◀─ Progress*, then one of Registered, Done, Models, Repository, Status, LogLines, Failure ── dispatcher
    worker ── WorkerHello, WorkerReady, WorkerFailed, WorkerRecycleDue, WorkerUnrecoverable, WorkerEnded ──▶ dispatcher
    worker ◀─ LoadModel, WithdrawLane ── dispatcher
    worker ── WorkerReadiness, LoadOther, UnloadOther, AskReadiness ──▶ dispatcher
    worker ◀─ Done, Readiness, Failure ── dispatcher
    registrant with workers in its threads ◀─ StartWorker, EndWorker, Released ── dispatcher
    proxy  ── Attach, LaneLost, BatchOverdue, MayCall, CallsWait, Detach ──▶ dispatcher
    proxy  ◀─ Attached, Verdict, StuckCalls, Failure ── dispatcher

On the wire a message is MessagePack (msgspec, tagged by the type's name). The user's own bytes
(pickled callables) travel beside it in separate frames, which the dispatcher never deserializes.
The format is private to one version of this package: every hello compares `PROTOCOL`.
"""

from __future__ import annotations

from typing import Union

import msgspec

from pytriton._protocol.messages.answers import (
    SERVED_STATES,
    Done,
    Failure,
    InstanceInfo,
    KeptRegistration,
    LogLines,
    ModelInfo,
    Models,
    Progress,
    Registered,
    Registrations,
    Reloaded,
    Repository,
    RepositoryModel,
    RetiringServer,
    ServerInfo,
    ServerReplaced,
    Status,
    ToClient,
    WorkerExit,
)
from pytriton._protocol.messages.base import (
    PROTOCOL,
    Message,
)
from pytriton._protocol.messages.client import (
    Cancel,
    Drain,
    EndLease,
    Explain,
    FromClient,
    GetEvents,
    GetLogs,
    GetRegistrations,
    GetRepository,
    GetRequests,
    GetStatus,
    ListModels,
    LoadFromRepository,
    LogRequests,
    Offer,
    ProfileWorker,
    Register,
    Reload,
    RenewLease,
    ReplaceServer,
    Rollback,
    Scale,
    Shutdown,
    UnloadFromRepository,
    Unregister,
    Upgrade,
)
from pytriton._protocol.messages.events import (
    Event,
    EventList,
    Explanation,
    Finding,
)
from pytriton._protocol.messages.metrics import (
    DaemonMetrics,
    GetMetrics,
    Histogram,
    InstanceMetrics,
    MemoryInfo,
    MetricsSnapshot,
    ModelMetrics,
    QueueMetrics,
    WebhookMetrics,
    Work,
)
from pytriton._protocol.messages.model_spec import (
    Autoscale,
    Lease,
    Limits,
    ModelSpec,
    OpenAICard,
    PythonModel,
    Warmup,
    WarmupTensor,
    WorkerEnvironment,
)
from pytriton._protocol.messages.proxy import (
    Action,
    Attach,
    Attached,
    BatchOverdue,
    CallsWait,
    Detach,
    LaneLost,
    MayCall,
    StuckCalls,
    Verdict,
    WithProxy,
)
from pytriton._protocol.messages.python_model import (
    AskReadiness,
    LoadOther,
    Readiness,
    UnloadOther,
    WithModel,
    WorkerReadiness,
)
from pytriton._protocol.messages.requests import (
    Profiled,
    RequestEntry,
    Requests,
)
from pytriton._protocol.messages.worker import (
    NO_LANE,
    Completion,
    EndWorker,
    LoadModel,
    Released,
    StartWorker,
    WithdrawLane,
    WithWorker,
    WorkerEnded,
    WorkerFailed,
    WorkerHello,
    WorkerReady,
    WorkerRecycleDue,
    WorkerUnrecoverable,
)
from pytriton._protocol.scalars import for_encoder

__all__ = [
    "NO_LANE",
    "PROTOCOL",
    "SERVED_STATES",
    "Action",
    "AnyMessage",
    "AskReadiness",
    "Attach",
    "Attached",
    "Autoscale",
    "BatchOverdue",
    "CallsWait",
    "Cancel",
    "Completion",
    "DaemonMetrics",
    "Detach",
    "Done",
    "Drain",
    "EndLease",
    "EndWorker",
    "Event",
    "EventList",
    "Explain",
    "Explanation",
    "Failure",
    "Finding",
    "GetEvents",
    "GetLogs",
    "GetMetrics",
    "GetRegistrations",
    "GetRepository",
    "GetRequests",
    "GetStatus",
    "Histogram",
    "InstanceInfo",
    "InstanceMetrics",
    "KeptRegistration",
    "LaneLost",
    "Lease",
    "Limits",
    "ListModels",
    "LoadFromRepository",
    "LoadModel",
    "LoadOther",
    "LogLines",
    "LogRequests",
    "MalformedMessage",
    "MayCall",
    "MemoryInfo",
    "Message",
    "MetricsSnapshot",
    "ModelInfo",
    "ModelMetrics",
    "ModelSpec",
    "Models",
    "Offer",
    "OpenAICard",
    "ProfileWorker",
    "Profiled",
    "Progress",
    "PythonModel",
    "QueueMetrics",
    "Readiness",
    "Register",
    "Registered",
    "Registrations",
    "Released",
    "Reload",
    "Reloaded",
    "RenewLease",
    "ReplaceServer",
    "Repository",
    "RepositoryModel",
    "RequestEntry",
    "Requests",
    "RetiringServer",
    "Rollback",
    "Scale",
    "ServerInfo",
    "ServerReplaced",
    "Shutdown",
    "StartWorker",
    "Status",
    "StuckCalls",
    "UnloadFromRepository",
    "UnloadOther",
    "Unregister",
    "Upgrade",
    "Verdict",
    "Warmup",
    "WarmupTensor",
    "WebhookMetrics",
    "WithdrawLane",
    "Work",
    "WorkerEnded",
    "WorkerEnvironment",
    "WorkerExit",
    "WorkerFailed",
    "WorkerHello",
    "WorkerReadiness",
    "WorkerReady",
    "WorkerRecycleDue",
    "WorkerUnrecoverable",
    "decode",
    "encode",
]

AnyMessage = Union[FromClient, ToClient, WithWorker, WithModel, WithProxy]

#: Accept numpy scalars where numbers are expected: no field has a type for them.
_encoder = msgspec.msgpack.Encoder(enc_hook=for_encoder)
_decoder = msgspec.msgpack.Decoder(AnyMessage)


class MalformedMessage(ValueError):
    """The bytes are not a valid message of this protocol."""


def encode(message: AnyMessage) -> bytes:
    """Return the wire form of a control message."""
    return _encoder.encode(message)


def decode(data: bytes) -> AnyMessage:
    """Return the control message in `data`.

    Raises:
        MalformedMessage: the data are not exactly one well-formed message.
    """
    try:
        message: AnyMessage = _decoder.decode(data)
    # ValidationError is a DecodeError; for invalid UTF-8, msgspec raises Python's own error.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(str(error)) from error
    return message
