"""The ids of the requests of a batch; nothing here runs before somebody asks for one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

from pytriton.ipc.errors import sendable, with_id
from pytriton.ipc.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    RequestRef,
    ResponseRef,
)

if TYPE_CHECKING:
    from pytriton.worker.model import Part

#: The batch that a task of an event loop serves.
serving: ContextVar[Sequence[Part] | None] = ContextVar("pytriton_serving", default=None)
#: Characters of an id: it is a client's.
MOST = 200
#: Characters of all errors of a batch.
_MOST_TEXT = 1 << 15


def ids_of(batch: Batch) -> list[str]:
    """Return the id of each request: its client's, that of its trace, or one of ours."""
    return [_id(batch, place, ref) for place, ref in enumerate(batch.requests)]


def id_at(batch: Batch, place: int) -> str:
    """Return the id of the request at one place of a batch."""
    return _id(batch, place, batch.requests[place])


def id_of(batches: Sequence[Batch], wanted: RequestRef) -> str:
    """Return the id of a request of these batches; of one that is none of theirs, as far as it has one."""
    for batch in batches:
        for place, ref in enumerate(batch.requests):
            if ref is wanted:
                return _id(batch, place, ref)
    return _clean(wanted.request_id) or _of_headers(wanted.parameters)


def with_ids(failed: BatchFailed, batch: Batch) -> BatchDone | BatchFailed:
    """Return an answer in which the error of each request names it, unless that is too much to send."""
    count = len(batch.requests)
    if count <= 1 or count * len(failed.text) > _MOST_TEXT:
        return BatchFailed(failed.id, with_only_id(failed.text, batch))
    texts = [with_id(failed.text, one) for one in ids_of(batch)]
    return BatchDone(failed.id, [ResponseRef([], text) for text in texts])


def with_only_id(text: str, batch: Batch) -> str:
    """Return the text of an error, with the id of the request if there is only one."""
    return with_id(text, id_at(batch, 0)) if len(batch.requests) == 1 else text


def trace_id(context: str | None) -> str:
    """Return the trace of a context, the JSON of its headers; "" when it has none."""
    if not context:
        return ""
    return _of_traceparent(object_of(context).get("traceparent"))


def trace_of(batch: Batch) -> str:
    """Return the trace of the first traced request of a batch; "" when none is."""
    contexts = batch.trace.contexts if batch.trace is not None else []
    return next((found for context in contexts if (found := trace_id(context))), "")


def object_of(text: str) -> dict[str, Any]:
    """Return the members of a JSON object; none of what is no such: a proxy or a client has written it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _id(batch: Batch, place: int, ref: RequestRef) -> str:
    return (
        _clean(ref.request_id)
        or _of_headers(ref.parameters)
        or trace_id(ref.details.trace if ref.details else None)
        or trace_id(_context(batch, place))
        or f"{_of_process()}-{batch.taken_ns:x}-{batch.id:x}-{place}"
    )


def _context(batch: Batch, place: int) -> str:
    contexts = batch.trace.contexts if batch.trace is not None else []
    return contexts[place] if place < len(contexts) else ""


def _of_headers(parameters: str) -> str:
    """Return the id that forwarded headers give: `x-request-id`, else the trace of `traceparent`."""
    lower = parameters.lower()
    if "x-request-id" not in lower and "traceparent" not in lower:
        return ""
    headers = {name.lower(): value for name, value in object_of(parameters).items()}
    given = headers.get("x-request-id")
    found = _clean(given) if isinstance(given, str) else ""
    return found or _of_traceparent(headers.get("traceparent"))


def _of_traceparent(value: Any) -> str:
    parts = value.split("-") if isinstance(value, str) else []
    return _clean(parts[1]) if len(parts) >= 4 else ""


def _clean(text: str) -> str:
    """Return a client's text as one line that a log can show."""
    if text.isascii() and text.isprintable() and len(text) <= MOST:
        return text
    return "".join(one if one.isprintable() else "?" for one in sendable(text[:MOST])[:MOST])


@cache
def _of_process() -> str:
    return secrets.token_hex(4)
