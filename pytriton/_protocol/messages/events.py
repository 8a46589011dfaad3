"""Events: the dispatcher's decisions and observations, as sent to clients."""

from __future__ import annotations

from typing import Optional, Union

import msgspec

from pytriton._protocol.messages.base import Message


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision of the daemon. Its kind is one of `dispatcher/telemetry/events/kinds.py`.

    Attributes:
        serial: orders events, even simultaneous ones; keeps increasing across restarts of the daemon
        at: seconds since the epoch
        kind: the name of its kind
        model: the model it is about; "": the daemon itself
        version: the model's version
        instance: the model's instance; None: the model as a whole
        worker: the worker's name, unique within one run of the daemon
        who: who requested it: a user and process, the name of a key, or a part of the daemon
        reason: the reason in words
        numbers: values by name; the kind documents their meaning
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
    """One problem that was found.

    Attributes:
        severity: "down": no requests are served; "degraded": something is missing or fails; "notice": worth knowing
        about: a keyword for programs, such as "crash_loop"
        text: a description with the reason
        advice: what to do
        at: since when, seconds since the epoch
        instance: the affected instance
    """

    severity: str
    about: str
    text: str
    advice: str = ""
    at: Optional[float] = None
    instance: Optional[int] = None


class Explanation(Message, frozen=True):
    """Answer to Explain: a verdict in one sentence, the findings, worst first, and the events, oldest first."""

    model: str
    verdict: str
    findings: list[Finding]
    events: list[Event]


class EventList(Message, frozen=True):
    """Answer to GetEvents, oldest first."""

    events: list[Event]
