"""Reports a reload of the settings as an event."""

from __future__ import annotations

from pytriton._protocol import messages
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events


def emit_reload(events: Events, answer: messages.Reloaded) -> None:
    """Emit an event with the changes of a reload, or with the reason why it failed."""
    if answer.problem:
        events.emit(kinds.RELOAD_FAILED, reason=answer.problem)
        return
    effects = [f"now: {', '.join(answer.applied)}"] if answer.applied else []
    if answer.needs_restart:
        effects.append(f"after a restart of the daemon: {', '.join(answer.needs_restart)}")
    counts = {"applied": len(answer.applied), "waiting": len(answer.needs_restart)}
    events.emit(kinds.RELOADED, reason="; ".join(effects) or "no changes", numbers=counts)
