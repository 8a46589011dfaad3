"""The messages from clients to the dispatcher."""

from __future__ import annotations

from typing import Any, Optional, Union

import msgspec

from pytriton._protocol.messages.base import PROTOCOL, Message
from pytriton._protocol.messages.figures import GetFigures
from pytriton._protocol.messages.model_spec import Autoscale, ModelSpec


class Register(Message, frozen=True):
    """Serve a model. Payload frames: one pickled callable, or one per instance.

    A temporary one is served until the sender's process ends, and is not kept for the next start.
    """

    spec: ModelSpec
    replace: bool = False
    temporary: bool = False
    protocol: int = PROTOCOL


class Offer(Message, frozen=True):
    """May a message of these sizes be sent? ZeroMQ drops one that is too large without a word to either side.

    `message_bytes` are those without payloads, `payload_bytes` those of the largest of so many `payloads`. Asked before
    every message with a frame above `control.ALWAYS_TAKEN_BYTES`; answered with Done, or a Failure.
    """

    what: str
    message_bytes: int
    payload_bytes: int = 0
    payloads: int = 0


class Unregister(Message, frozen=True):
    """Stop serving a model and end its workers."""

    name: str


class Scale(Message, frozen=True):
    """Serve a model with another number of instances; with `autoscale`, from then on as many as its load takes."""

    name: str
    instances: int
    autoscale: Optional[Autoscale] = None


class Rollback(Message, frozen=True):
    """Put back what a model was before it was replaced."""

    name: str


class RenewTrial(Message, frozen=True):
    """A registration on trial is still wanted: its time begins anew, and its share is this one from now on."""

    name: str
    trial: str
    share: Optional[float] = None


class EndTrial(Message, frozen=True):
    """A registration on trial is there to stay (`keep`), or is taken back now; answered when that is done."""

    name: str
    trial: str
    keep: bool


class LoadFromRepository(Message, frozen=True):
    """Load a model of a model repository, or load it anew; `config` instead of the one in its folder."""

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
    """Ask for the newest `lines` log lines of a model, or of the daemon when `model` is None."""

    model: Optional[str] = None
    lines: int = 100


class GetRegistrations(Message, frozen=True):
    """Ask for Registrations: those of these names (none: all), with their payloads if they are wanted.

    With the `state` of an earlier answer in `known`, they are told only if they have changed since.
    """

    names: list[str] = msgspec.field(default_factory=list)
    payloads: bool = False
    known: str = ""


class Explain(Message, frozen=True):
    """Ask for Explanation: why a model is as it is, with at most so many of its newest events."""

    model: str
    events: int = 100


class GetEvents(Message, frozen=True):
    """Ask for EventList: at most `limit` of the newest events.

    Attributes:
        model: that they are about; None: of all, and of the daemon itself
        kinds: names; none: all
        since: seconds since the epoch
        after: those with a higher serial
    """

    model: Optional[str] = None
    kinds: list[str] = msgspec.field(default_factory=list)
    since: float = 0.0
    after: int = 0
    limit: int = 100


class LogRequests(Message, frozen=True):
    """From now on write each request of a model to its access log, or do not."""

    name: str
    on: bool


class GetRequests(Message, frozen=True):
    """Ask for Requests: the slowest and the last failed ones of a model, and what its access log has."""

    model: str


class ProfileWorker(Message, frozen=True):
    """Ask for Profiled: what the worker of an instance (default: the first that serves) does, for so many seconds."""

    model: str
    seconds: float = 10.0
    instance: Optional[int] = None


class Cancel(Message, frozen=True):
    """Give up an earlier request of the same connection, which then has no answer.

    Only Register can be given up: its workers end, and nothing of it is left. Otherwise it has no effect.
    """

    request_id: bytes


class Shutdown(Message, frozen=True):
    """Stop the daemon as SIGTERM does; answered before it stops."""


class Drain(Message, frozen=True):
    """Leave: be not ready, refuse registrations, serve on for a while, then stop.

    Attributes:
        settle_s: for how long requests are still taken: until balancers have noticed
        timeout_s: for how long those under way are waited for then; None: grace_period_s
        stop: False: wait to be stopped instead; answered when settle_s are over
    """

    settle_s: float = 5.0
    timeout_s: Optional[float] = None
    stop: bool = True


class Upgrade(Message, frozen=True):
    """Become the version of pytriton-daemon that is installed now, while all models are served.

    Answered with Done, or a Failure, before the daemon begins; the event "upgraded" or "not_upgraded" tells what became
    of it.

    Attributes:
        python: the interpreter of another environment that has it
        wait_s: for so long, changes under way may be finished
    """

    python: Optional[str] = None
    wait_s: float = 30.0


class Reload(Message, frozen=True):
    """Read the settings anew as SIGHUP does; answered with Reloaded."""


class ReplaceServer(Message, frozen=True):
    """Have another tritonserver take the place of the one that runs, without a request lost.

    Answered with ServerReplaced when the new one serves.

    Attributes:
        force: also while sequences are in progress, whose next requests fail
    """

    force: bool = False


#: What changes models or the daemon, and waits while the daemon is being upgraded.
Changing = Union[
    Register,
    Unregister,
    Scale,
    Rollback,
    EndTrial,
    LoadFromRepository,
    UnloadFromRepository,
    LogRequests,
    ProfileWorker,
    Reload,
    ReplaceServer,
]
#: All that a client sends.
FromClient = Union[
    Changing,
    Offer,
    RenewTrial,
    GetRepository,
    ListModels,
    GetStatus,
    GetFigures,
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
