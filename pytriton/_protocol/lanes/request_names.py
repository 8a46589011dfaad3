"""Derives the request id used in errors, logs and traces; workers and proxies derive the same one."""

from __future__ import annotations

import json
from typing import Any

from pytriton._protocol.errors import sendable
from pytriton._protocol.lanes.lane_messages import Batch, RequestRef

#: Maximum length of an id, which clients choose.
MAX_LENGTH = 200


def id_at(batch: Batch, place: int) -> str:
    """Return the id of the request at a position in a batch: the given one, or a generated one."""
    return _given_at(batch, place) or f"{batch.taken_ns:x}-{batch.id:x}-{place}"


def given_id(ref: RequestRef, context: str = "") -> str:
    """Return the id given by a request's client, headers or trace; "" if there is none."""
    return (
        clean(ref.request_id)
        or _of_headers(ref.parameters)
        or trace_id(ref.details.trace if ref.details else None)
        or trace_id(context)
    )


def trace_id(context: str | None) -> str:
    """Return the trace id in a context, the JSON of its headers; "" if there is none."""
    if not context:
        return ""
    return _of_traceparent(object_of(context).get("traceparent"))


def object_of(text: str) -> dict[str, Any]:
    """Return the members of a JSON object, or {} if the text is not one: it comes from a proxy or a client."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def clean(text: str) -> str:
    """Return a client's text as a single line that is safe to log."""
    if text.isascii() and text.isprintable() and len(text) <= MAX_LENGTH:
        return text
    return "".join(
        one if one.isprintable() else "?" for one in sendable(text[:MAX_LENGTH])[:MAX_LENGTH]
    )


def _given_at(batch: Batch, place: int) -> str:
    contexts = batch.trace.contexts if batch.trace is not None else []
    return given_id(batch.requests[place], contexts[place] if place < len(contexts) else "")


def _of_headers(parameters: str) -> str:
    """Return the id given by forwarded headers: `x-request-id`, else the trace id of `traceparent`."""
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
