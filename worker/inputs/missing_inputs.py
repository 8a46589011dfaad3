"""Refuses requests that lack an input, since Triton only counts inputs.

A model with optional inputs gets every request with at least as many inputs as there are required
ones, whichever they are (seen in 2.51). The callable would raise a KeyError, and fail the whole
batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import structs

from pytriton._protocol.errors import with_id
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    BatchTrace,
    RequestRef,
    ResponseRef,
)
from pytriton._protocol.lanes.request_names import id_at


class RequiredInputs:
    """The inputs that every request of a model must have. `names` is empty if Triton's count is sufficient."""

    def __init__(self, model: str, config: Mapping[str, Any]) -> None:
        names = [entry["name"] for entry in config["input"] if not entry.get("optional")]
        self._model = model
        self.names = names if len(names) < len(config["input"]) else []

    def lacking(self, batch: Batch) -> list[str | None] | None:
        """Return the error of each request (None if valid), or None if all are valid."""
        if not self.names:
            return None
        found = [self._fault(request) for request in batch.requests]
        return found if any(found) else None

    def _fault(self, request: RequestRef) -> str | None:
        given = [ref.name for ref in request.inputs]
        for name in self.names:
            if name not in given:
                return (
                    f"the request lacks the input `{name}` of model `{self._model}`, which is not "
                    f"optional; it has {', '.join(f'`{one}`' for one in given) or 'none'}."
                )
        return None


def complete(batch: Batch, faults: list[str | None]) -> Batch:
    """Return a batch without the invalid requests; the others keep their ids, which count positions."""
    places = [place for place, fault in enumerate(faults) if fault is None]
    right = [
        structs.replace(batch.requests[place], request_id=id_at(batch, place)) for place in places
    ]
    trace = batch.trace
    if trace is not None:
        contexts = dict(enumerate(trace.contexts))
        trace = BatchTrace(trace.begun_ns, [contexts.get(place, "") for place in places])
    return Batch(batch.id, right, trace, batch.reads, batch.alone, batch.taken_ns)


def one_by_one(batch: Batch) -> Iterator[Batch]:
    """Yield a batch for each request, which keeps its id."""
    for place, request in enumerate(batch.requests):
        alone = structs.replace(request, request_id=id_at(batch, place))
        yield structs.replace(batch, requests=[alone], trace=None, rows=0)


def with_faults(
    answer: BatchDone | BatchFailed, faults: list[str | None], batch: Batch
) -> BatchDone:
    """Return the answer to the whole batch from the answer to its `complete` part."""
    return BatchDone(answer.id, list(_responses(answer, faults, batch)))


def _responses(
    answer: BatchDone | BatchFailed, faults: list[str | None], batch: Batch
) -> Iterator[ResponseRef]:
    given = iter(answer.responses if isinstance(answer, BatchDone) else ())
    failed = answer.text if isinstance(answer, BatchFailed) else None
    for place, fault in enumerate(faults):
        text = fault or failed
        if text is None:
            yield next(given)
        else:
            yield ResponseRef([], with_id(text, id_at(batch, place)))
