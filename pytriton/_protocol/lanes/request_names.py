"""The id of a request, by which errors, logs and traces name it; workers and proxies make out the same one."""

from __future__ import annotations

import json
from typing import Any

from pytriton._protocol.errors import sendable
from pytriton._protocol.lanes.lane_messages import Batch, RequestRef

#: Characters of an id: it is a client's.
MOST = 200


def id_at(batch: Batch, place: int) -> str:
    """Return the id of the request at one place of a batch: the one that was given to it, or one of ours."""
    return _given_at(batch, place) or f"{batch.taken_ns:x}-{batch.id:x}-{place}"


def given_id(ref: RequestRef, context: str = "") -> str:
    """Return the id of a request by its client, its headers or its trace; "" if they give none."""
    return (
        clean(ref.request_id)
        or _of_headers(ref.parameters)
        or trace_id(ref.details.trace if ref.details else None)
        or trace_id(context)
    )


def trace_id(context: str | None) -> str:
    """Return the trace of a context, the JSON of its headers; "" when it has none."""
    if not context:
        return ""
    return _of_traceparent(object_of(context).get("traceparent"))


def object_of(text: str) -> dict[str, Any]:
    """Return the members of a JSON object; none of what is no such: a proxy or a client has written it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def clean(text: str) -> str:
    """Return a client's text as one line that a log can show."""
    if text.isascii() and text.isprintable() and len(text) <= MOST:
        return text
    return "".join(one if one.isprintable() else "?" for one in sendable(text[:MOST])[:MOST])


def _given_at(batch: Batch, place: int) -> str:
    contexts = batch.trace.contexts if batch.trace is not None else []
    return given_id(batch.requests[place], contexts[place] if place < len(contexts) else "")


def _of_headers(parameters: str) -> str:
    """Return the id that forwarded headers give: `x-request-id`, else the trace of `traceparent`."""
    lower = parameters.lower()
    if "x-request-id" not in lower and "traceparent" not in lower:
        return ""
    headers = {name.lower(): value for name, value in object_of(parameters).items()}
    given = headers.get("x-request-id")
    found = clean(given) if isinstance(given, str) else ""
    return found or _of_traceparent(headers.get("traceparent"))


def _of_traceparent(value: Any) -> str:
    parts = value.split("-") if isinstance(value, str) else []
    return clean(parts[1]) if len(parts) >= 4 else ""
