"""The place where decisions are told: one call makes an event, a record of the log, and hands it on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog

from pytriton._protocol.errors import sendable
from pytriton._protocol.messages.events import Event
from pytriton.dispatcher.telemetry.events.actor import asked_by
from pytriton.dispatcher.telemetry.events.kinds import Kind

_log = structlog.get_logger(__name__)

#: Texts come from workers and clients, too; what is longer is cut.
LONGEST_REASON, LONGEST_WHO = 2000, 200

#: Takes events. Must neither block nor take long: it is called where the decision is made.
Sink = Callable[[Event], None]


class Events:
    """Takes what is decided.

    Args:
        sinks: get every event; without any, events are records of the daemon's log and nothing else
        serials: numbers for the events
        model: what all events told here are about
        version: of the model
        instance: of the model

    Example:
        >>> now = {"instances": 4, "before": 2}
        >>> events.tell(kinds.SCALED, model="m", reason="12 requests wait", numbers=now)  # doctest: +SKIP
    """

    def __init__(
        self,
        sinks: Sequence[Sink] = (),
        serials: Iterator[int] | None = None,
        *,
        model: str = "",
        version: int | None = None,
        instance: int | None = None,
    ) -> None:
        self._sinks = sinks
        self._serials = itertools.count(1) if serials is None else serials
        self._model = model
        self._version = version
        self._instance = instance

    def about(self, model: str, version: int | None = None, instance: int | None = None) -> Events:
        """Return what takes the events of one model, or one of its instances."""
        return Events(self._sinks, self._serials, model=model, version=version, instance=instance)

    def tell(
        self,
        kind: Kind,
        *,
        model: str = "",
        version: int | None = None,
        instance: int | None = None,
        worker: str = "",
        who: str = "",
        reason: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Tell one event; never fails.

        Args:
            kind: one of kinds.py
            model: if this is not of one model alone
            version: likewise
            instance: likewise
            worker: which worker it is about
            who: asked for it; default: whoever the present task acts for, see actor.py
            reason: in words
            numbers: those that the kind declares
        """
        event = Event(
            serial=next(self._serials),
            at=time.time(),
            kind=kind.name,
            model=sendable(model or self._model),
            version=self._version if version is None else version,
            instance=self._instance if instance is None else instance,
            worker=worker,
            who=_cut(who or (asked_by() if kind.asked else ""), LONGEST_WHO),
            reason=_cut(reason, LONGEST_REASON),
            numbers=dict(numbers or {}),
        )
        _log_event(kind, event)
        for sink in self._sinks:
            try:
                sink(event)
            except Exception:  # noqa: PERF203, whatever becomes of events, what they tell of goes on
                _log.exception("a fault of the event log", kind=kind.name)


#: Where nobody asks for events: they are in the daemon's log.
LOG_ONLY = Events()


def _log_event(kind: Kind, event: Event) -> None:
    fields: dict[str, object] = {
        name: value
        for name in ("model", "instance", "worker", "who", "reason")
        if (value := getattr(event, name)) not in ("", None)
    }
    getattr(_log, kind.level)(kind.says, kind=kind.name, **fields, **event.numbers)


def _cut(text: str, most: int) -> str:
    """Return a text that a file and a message can have: names of files in it may be no Unicode."""
    text = sendable(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"
