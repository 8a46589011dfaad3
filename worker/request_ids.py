"""The ids of the requests of a batch, computed on demand."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pytriton._protocol.lanes.lane_messages import Batch, RequestRef
from pytriton._protocol.lanes.request_names import given_id, id_at, trace_id

if TYPE_CHECKING:
    from pytriton.worker.model import Part

#: The batch that a task of an event loop serves.
serving: ContextVar[Sequence[Part] | None] = ContextVar("pytriton_serving", default=None)


def ids_of(batch: Batch) -> list[str]:
    """Return the id of each request: from its client or its trace, or generated."""
    return [id_at(batch, place) for place in range(len(batch.requests))]


def id_of(batches: Sequence[Batch], wanted: RequestRef) -> str:
    """Return the id of a request of these batches; for others, the given id, if any."""
    for batch in batches:
        for place, ref in enumerate(batch.requests):
            if ref is wanted:
                return id_at(batch, place)
    return given_id(wanted)


def trace_of(batch: Batch) -> str:
    """Return the trace id of the first traced request of a batch; "" if there is none."""
    contexts = batch.trace.contexts if batch.trace is not None else []
    return next((found for context in contexts if (found := trace_id(context))), "")
