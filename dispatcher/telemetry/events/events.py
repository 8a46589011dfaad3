"""Emits events: one call creates an event, logs it, and passes it to all sinks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import structlog

from pytriton._protocol import messages
from pytriton._protocol.messages import sendable
from pytriton._protocol.messages.client import Event
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.kinds import EventKind

_log = structlog.get_logger(__name__)

#: Maximum length of a text, which may come from a worker or a client.
MAX_REASON_LENGTH, MAX_WHO_LENGTH = 2000, 200

#: Function that receives events. It is called where the decision is made, so it must be fast and not block.
Sink = Callable[[Event], None]


class Events:
    """Emits the events of the daemon or of one model.

    Args:
        sinks: functions that receive every event; without any, events are only logged
        serials: serial numbers for the events
        model: model that the events are about; "" if it varies
        version: version of the model
        instance: instance of the model

    Example:
        >>> now = {"instances": 4, "before": 2}
        >>> events.emit(kinds.SCALED, model="m", reason="12 requests wait", numbers=now)  # doctest: +SKIP
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
        """Return an emitter for events about one model, or one of its instances."""
        return Events(self._sinks, self._serials, model=model, version=version, instance=instance)

    def emit(
        self,
        kind: EventKind,
        *,
        model: str = "",
        version: int | None = None,
        instance: int | None = None,
        worker: str = "",
        who: str = "",
        code: str = "",
        reason: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Emit an event. Never fails.

        Args:
            kind: one of the kinds in kinds.py
            model: model that the event is about, unless this emitter has one
            version: version of the model, likewise
            instance: instance of the model, likewise
            worker: name of the worker that the event is about
            who: the actor; defaults to that of the current task, see `acting_for`
            code: one of the codes that the kind declares, if it declares any
            reason: the reason, as text
            numbers: the numbers that the kind declares, by name
        """
        event = Event(
            serial=next(self._serials),
            at=time.time(),
            kind=kind.name,
            model=sendable(model or self._model),
            version=self._version if version is None else version,
            instance=self._instance if instance is None else instance,
            worker=worker,
            who=_truncate(who or (current_actor() if kind.is_audit else ""), MAX_WHO_LENGTH),
            reason=_truncate(reason, MAX_REASON_LENGTH),
            numbers=dict(numbers or {}),
            code=code,
        )
        _log_event(kind, event)
        for sink in self._sinks:
            try:
                sink(event)
            except Exception:  # noqa: PERF203, a failing sink must affect neither the caller nor other sinks
                _log.exception("internal error in the event log", kind=kind.name)


#: Emitter for code without an event log, which only logs events.
LOG_ONLY = Events()


def _log_event(kind: EventKind, event: Event) -> None:
    fields: dict[str, object] = {
        name: value
        for name in ("model", "instance", "worker", "who", "code", "reason")
        if (value := getattr(event, name)) not in ("", None)
    }
    getattr(_log, kind.level)(kind.says, kind=kind.name, **fields, **event.numbers)


def _truncate(text: str, max_length: int) -> str:
    """Truncate a text, and replace characters that cannot be encoded (file names need not be valid Unicode)."""
    text = sendable(text[: max_length + 1])
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


# ── the actor on whose behalf the current task runs: known to the task that handles a message, and to what it calls ──

_actor: ContextVar[str] = ContextVar("actor", default="")


@contextmanager
def acting_for(who: str) -> Iterator[None]:
    """Attribute events emitted in this context to `who`, for example "user ann, process 4242 (python train.py)"."""
    token = _actor.set(who)
    try:
        yield
    finally:
        _actor.reset(token)


def current_actor() -> str:
    """Return the actor that the current task is acting for; "" for the daemon itself."""
    return _actor.get()


# ── reloads ──────────────────────────────────────────────────────────────────────────────────────


def emit_reload(events: Events, answer: messages.Reloaded) -> None:
    """Emit an event about a reload of the settings: which settings have changed, or why the reload failed."""
    if answer.problem:
        events.emit(kinds.RELOAD_FAILED, reason=answer.problem)
        return
    effects = [f"now: {', '.join(answer.applied)}"] if answer.applied else []
    if answer.needs_restart:
        effects.append(f"after a restart of the daemon: {', '.join(answer.needs_restart)}")
    counts = {"applied": len(answer.applied), "waiting": len(answer.needs_restart)}
    events.emit(kinds.RELOADED, reason="; ".join(effects) or "no changes", numbers=counts)
