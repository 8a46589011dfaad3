"""A change of a model that fails is told: what was wanted, and why it could not be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pytriton.dispatcher.events.events import Events
from pytriton.dispatcher.events.kinds import Kind
from pytriton.ipc.errors import RemoteFailure


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
