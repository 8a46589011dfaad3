"""Events: what the dispatcher has decided, or has seen, as it tells clients."""

from __future__ import annotations

from typing import Optional, Union

import msgspec

from pytriton._protocol.messages.base import Message


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision of the daemon. Its kind is one of `dispatcher/telemetry/events/kinds.py`.

    Attributes:
        serial: orders events, also those of one moment; grows over restarts of the daemon
        at: seconds since the epoch
        kind: the name of its kind
        model: which it is about; "": the daemon itself
        version: of the model
        instance: of the model; None: it is about the model as a whole
        worker: the worker's name, unique in one life of the daemon
        who: asked for it: a user and process, the name of a key, or a part of the daemon
        reason: in words
        numbers: by name; what they mean stands with the kind
    """

    serial: int
    at: float
    kind: str
    model: str = ""
    version: Optional[int] = None
    instance: Optional[int] = None
    worker: str = ""
    who: str = ""
    reason: str = ""
    numbers: dict[str, Union[int, float]] = {}


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is not as it should be.

    Attributes:
        severity: "down": nobody is served; "degraded": something is missing or fails; "notice": worth knowing
        about: a word for it, such as "crash_loop", for programs
        text: in words, with the reason
        advice: what to do
        at: since when, seconds since the epoch
        instance: which one
    """

    severity: str
    about: str
    text: str
    advice: str = ""
    at: Optional[float] = None
    instance: Optional[int] = None


class Explanation(Message, frozen=True):
    """Answer to Explain: the verdict in one sentence, what was found, the worst first, and the events, oldest first."""

    model: str
    verdict: str
    findings: list[Finding]
    events: list[Event]


class EventList(Message, frozen=True):
    """Answer to GetEvents, oldest first."""

    events: list[Event]
