"""A reload of the settings as an event."""

from __future__ import annotations

from pytriton._protocol import messages
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events


def tell_reload(events: Events, answer: messages.Reloaded) -> None:
    """Tell what a reload has changed, or why it has changed nothing."""
    if answer.problem:
        events.tell(kinds.NOT_RELOADED, reason=answer.problem)
        return
    told = [f"now: {', '.join(answer.applied)}"] if answer.applied else []
    if answer.needs_restart:
        told.append(f"after a restart of the daemon: {', '.join(answer.needs_restart)}")
    counts = {"applied": len(answer.applied), "waiting": len(answer.needs_restart)}
    events.tell(kinds.RELOADED, reason="; ".join(told) or "nothing has changed", numbers=counts)
