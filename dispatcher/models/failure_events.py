"""A change of a model that fails is told: what was wanted, and why it could not be."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.telemetry.events.kinds import Kind


@contextmanager
def failure_told(
    events: Events, kind: Kind, model: str, numbers: Mapping[str, float] | None = None
) -> Iterator[None]:
    """Tell an event of this kind when the block fails, or its client gives it up."""
    try:
        yield
    except RemoteFailure as failure:
        events.tell(kind, model=model, reason=failure.text, numbers=numbers)
        raise
    except asyncio.CancelledError:
        events.tell(
            kind, model=model, reason="its client gave it up, or has ended", numbers=numbers
        )
        raise


def registration_told(
    events: Events, request: messages.Register, served: Container[str]
) -> AbstractContextManager[None]:
    """Tell of a registration that fails: of a replacement, where a model of its name is `served`."""
    name = request.spec.name
    kind = kinds.NOT_REPLACED if request.replace and name in served else kinds.NOT_REGISTERED
    return failure_told(events, kind, name)
