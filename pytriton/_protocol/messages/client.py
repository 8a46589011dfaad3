"""The messages from clients to the dispatcher."""

from __future__ import annotations

from typing import Any, Optional, Union

import msgspec

from pytriton._protocol.messages.base import PROTOCOL, Message
from pytriton._protocol.messages.metrics import GetMetrics
from pytriton._protocol.messages.model_spec import Autoscale, ModelSpec


class Register(Message, frozen=True):
    """Serve a model. Payload frames: one pickled callable, or one per instance.

    An ephemeral model is served until the sender's process exits, and is not persisted.
    """

    spec: ModelSpec
    replace: bool = False
    ephemeral: bool = False
    protocol: int = PROTOCOL


class Offer(Message, frozen=True):
    """Ask whether a message of these sizes may be sent. ZeroMQ silently drops a message that is too large.

    `message_bytes` excludes payloads; `payload_bytes` is the size of the largest of `payloads` payloads. Sent before
    every message with a frame above `control.ALWAYS_TAKEN_BYTES`; answered with Done or a Failure.
    """

    what: str
    message_bytes: int
    payload_bytes: int = 0
    payloads: int = 0


class Unregister(Message, frozen=True):
    """Stop serving a model and end its workers."""

    name: str


class Scale(Message, frozen=True):
    """Change a model's number of instances; with `autoscale`, it follows the load from then on."""

    name: str
    instances: int
    autoscale: Optional[Autoscale] = None


class Rollback(Message, frozen=True):
    """Roll a model back to what it was before it was replaced."""

    name: str


class RenewLease(Message, frozen=True):
    """Renew a provisional registration: its time limit restarts, and `share` replaces its share of requests."""

    name: str
    lease: str
    share: Optional[float] = None


class EndLease(Message, frozen=True):
    """Make a provisional registration permanent (`keep`), or roll it back. Answered when that is done."""

    name: str
    lease: str
    keep: bool


class LoadFromRepository(Message, frozen=True):
    """Load or reload a model of a model repository; `config` overrides the one in its folder."""

    name: str
    config: Optional[dict[str, Any]] = None


class UnloadFromRepository(Message, frozen=True):
    """Stop serving a model of a model repository."""

    name: str


class GetRepository(Message, frozen=True):
    """Ask for Repository."""


class ListModels(Message, frozen=True):
    """Ask for Models."""


class GetStatus(Message, frozen=True):
    """Ask for Status."""


class GetLogs(Message, frozen=True):
    """Ask for the newest `lines` log lines of a model, or of the daemon if `model` is None."""

    model: Optional[str] = None
    lines: int = 100


class GetRegistrations(Message, frozen=True):
    """Ask for Registrations: those with these names (empty: all), with payloads on request.

    If `known` is the `state` of an earlier answer, they are sent only if they have changed since.
    """

    names: list[str] = msgspec.field(default_factory=list)
    payloads: bool = False
    known: str = ""


class Explain(Message, frozen=True):
    """Ask for Explanation: the reasons for a model's state, with at most `events` of its newest events."""

    model: str
    events: int = 100


class GetEvents(Message, frozen=True):
    """Ask for EventList: at most `limit` of the newest events.

    Attributes:
        model: only events about this model; None: events about all models and the daemon itself
        kinds: only these kinds of events; empty: all
        since: only events at or after this time, seconds since the epoch
        after: only events with a higher serial
    """

    model: Optional[str] = None
    kinds: list[str] = msgspec.field(default_factory=list)
    since: float = 0.0
    after: int = 0
    limit: int = 100


class LogRequests(Message, frozen=True):
    """Enable or disable a model's access log."""

    name: str
    on: bool


class GetRequests(Message, frozen=True):
    """Ask for Requests: a model's slowest and most recent failed requests, and the state of its access log."""

    model: str


class ProfileWorker(Message, frozen=True):
    """Ask for Profiled: a profile of an instance's worker (default: the first that serves) over some seconds."""

    model: str
    seconds: float = 10.0
    instance: Optional[int] = None


class Cancel(Message, frozen=True):
    """Cancel an earlier request of the same connection, which then gets no answer.

    Only Register can be cancelled: its workers exit, and nothing of it remains. Otherwise it has no effect.
    """

    request_id: bytes


class Shutdown(Message, frozen=True):
    """Stop the daemon as SIGTERM does. Answered before it stops."""


class Drain(Message, frozen=True):
    """Drain the daemon: become not ready, refuse registrations, keep serving for a while, then stop.

    Attributes:
        settle_s: how long requests are still accepted, until load balancers have noticed
        timeout_s: how long to wait for in-flight requests after that; None: grace_period_s
        stop: False: do not stop by itself; answered when settle_s have passed
    """

    settle_s: float = 5.0
    timeout_s: Optional[float] = None
    stop: bool = True


class Upgrade(Message, frozen=True):
    """Upgrade the daemon to the currently installed version of pytriton-daemon, while all models keep serving.

    Answered with Done, or a Failure, before the upgrade begins; the event "upgraded" or "upgrade_failed" reports its
    outcome.

    Attributes:
        python: the interpreter of another environment to upgrade to
        wait_s: how long to wait for changes in progress
    """

    python: Optional[str] = None
    wait_s: float = 30.0


class Reload(Message, frozen=True):
    """Reload the settings as SIGHUP does. Answered with Reloaded."""


class ReplaceServer(Message, frozen=True):
    """Replace the running tritonserver with a new one without losing a request.

    Answered with ServerReplaced when the new one serves.

    Attributes:
        force: replace even while sequences are in progress, whose next requests then fail
    """

    force: bool = False


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
