"""Answers from the event log: why a model is in its state, and which decisions were made."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.telemetry.events.explain import Situation, explain
from pytriton.dispatcher.telemetry.events.kinds import KINDS

if TYPE_CHECKING:
    from pytriton.dispatcher.daemon import Daemon

#: Maximum number of events in one answer, since answers stay in memory until clients read them.
MAX_EVENTS = 1000


async def explanation(daemon: Daemon, asked: messages.Explain) -> messages.Explanation:
    """Explain the state of a model.

    Raises:
        RemoteFailure: the model is unknown; the text lists the served models.
    """
    name = asked.model
    events = daemon.event_log.about(name) if name else []
    waiting = (await daemon.metrics.queues()).get(name)
    info = _info(daemon, name)
    if info is None and not events:
        daemon.registry.by_name(name)
    situation = Situation(
        name,
        info,
        events,
        daemon.status().server,
        time.time(),
        daemon.event_log.about(""),
        [text for text in (daemon.event_log.problem, *daemon.registry.restoring.problems) if text],
        None if waiting is None else sum(queue.pending for queue in waiting),
        daemon.status().state,
        daemon.requests.outcomes(name),
    )
    verdict, findings = explain(situation)
    count = max(0, min(asked.events, MAX_EVENTS))
    return messages.Explanation(name, verdict, findings, events[len(events) - count :])


def _info(daemon: Daemon, name: str) -> messages.ModelInfo | None:
    beginning = daemon.registry.beginning(name)
    infos = [*daemon.model_infos(), *([daemon.model_info(beginning)] if beginning else [])]
    return next((one for one in infos if one.name == name), None)


def _require_known(daemon: Daemon, name: str) -> None:
    if _info(daemon, name) is None:
        daemon.registry.by_name(name)


async def events(daemon: Daemon, asked: messages.GetEvents) -> messages.EventList:
    """Return the requested events.

    Raises:
        RemoteFailure: a kind or the model is unknown.
    """
    unknown = sorted(set(asked.kinds) - set(KINDS))
    if unknown:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"there are no events of kind {', '.join(unknown)}; there are: {', '.join(KINDS)}",
        )
    everything = await asyncio.to_thread(daemon.event_log.all)
    if asked.model and all(event.model != asked.model for event in everything):
        _require_known(daemon, asked.model)
    found = [
        event
        for event in everything
        if event.serial > asked.after
        and event.at >= asked.since
        and asked.model in (None, event.model)
        and (not asked.kinds or event.kind in asked.kinds)
    ]
    count = max(0, min(asked.limit, MAX_EVENTS))
    return messages.EventList(found[max(0, len(found) - count) :])
