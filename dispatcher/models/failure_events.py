"""Events for failed changes of models: what was requested, and why it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.telemetry.events.kinds import EventKind


@contextmanager
def emit_on_failure(
    events: Events, kind: EventKind, model: str, numbers: Mapping[str, float] | None = None
) -> Iterator[None]:
    """Emit an event of this kind if the block fails or is cancelled."""
    try:
        yield
    except RemoteFailure as failure:
        events.emit(kind, model=model, reason=failure.text, numbers=numbers)
        raise
    except asyncio.CancelledError:
        events.emit(kind, model=model, reason="its client cancelled it or exited", numbers=numbers)
        raise


def emit_on_register_failure(
    events: Events, request: messages.Register, served: Container[str]
) -> AbstractContextManager[None]:
    """Emit an event if a registration fails; a replacement failure if a model of its name is `served`."""
    name = request.spec.name
    kind = kinds.REPLACE_FAILED if request.replace and name in served else kinds.REGISTRATION_FAILED
    return emit_on_failure(events, kind, name)
