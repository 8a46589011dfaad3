"""Uses the event log to explain why models are in their current states, and returns the events themselves."""

from __future__ import annotations

import asyncio
import time

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.daemon_status import DaemonStatus
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.telemetry.events.event_log import EventLog
from pytriton.dispatcher.telemetry.events.explain import Situation, explain
from pytriton.dispatcher.telemetry.events.kinds import KINDS
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import MetricsCollector
from pytriton.dispatcher.telemetry.requests.collector import RequestCollector

#: Maximum number of events in one answer, since answers stay in memory until clients read them.
MAX_EVENTS = 1000


class Explainer:
    """Explains why models are in their current states, given their events and status."""

    def __init__(
        self,
        event_log: EventLog,
        registry: Registry,
        status: DaemonStatus,
        metrics: MetricsCollector,
        requests: RequestCollector,
    ) -> None:
        self._event_log = event_log
        self._registry = registry
        self._status = status
        self._metrics = metrics
        self._requests = requests

    async def explain(self, request: messages.Explain) -> messages.Explanation:
        """Explain why a model is in its state.

        Raises:
            RemoteFailure: the model is unknown; the text lists the served models.
        """
        name = request.model
        events = self._event_log.about(name) if name else []
        queues = (await self._metrics.queues()).get(name)
        info = self._status.find_model(name)
        if info is None and not events:
            self._registry.served.by_name(name)
        daemon = self._status.status(models=False)
        situation = Situation(
            name,
            info,
            events,
            daemon.server,
            time.time(),
            self._event_log.about(""),
            [
                text
                for text in (self._event_log.problem, *self._registry.restoring.problems)
                if text
            ],
            None if queues is None else sum(queue.pending for queue in queues),
            daemon.state,
            self._requests.outcomes(name),
        )
        verdict, findings = explain(situation)
        count = max(0, min(request.events, MAX_EVENTS))
        return messages.Explanation(name, verdict, findings, events[len(events) - count :])

    async def events(self, request: messages.GetEvents) -> messages.EventList:
        """Return the requested events.

        Raises:
            RemoteFailure: a kind of event, or the model, is unknown.
        """
        unknown = sorted(set(request.kinds) - set(KINDS))
        if unknown:
            raise RemoteFailure(
                ErrorKind.INVALID,
                f"unknown event kind {', '.join(unknown)}; known kinds: {', '.join(KINDS)}",
            )
        events = await asyncio.to_thread(self._event_log.all)
        name = request.model
        if (
            name
            and all(event.model != name for event in events)
            and self._status.find_model(name) is None
        ):
            self._registry.served.by_name(name)  # raises, and lists the served models
        found = [
            event
            for event in events
            if event.serial > request.after
            and event.at >= request.since
            and name in (None, event.model)
            and (not request.kinds or event.kind in request.kinds)
        ]
        count = max(0, min(request.limit, MAX_EVENTS))
        return messages.EventList(found[max(0, len(found) - count) :])
