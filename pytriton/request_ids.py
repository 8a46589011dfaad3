"""IDs of the requests being served, for log lines and for the callable's outgoing calls.

A request's ID is the one set by its client (KServe v2). Otherwise it is the header `x-request-id` or the trace ID in
the header `traceparent`, if the daemon forwards these headers. If a request has none of these, an ID is generated
when it is first needed, so that callables that do not use IDs have no cost.

    >>> import logging
    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(RequestIds())
    >>> handler.setFormatter(logging.Formatter("[%(request_id)s] %(message)s"))
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Iterator, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, Optional, Protocol

__all__ = ["RequestIds", "add_request_id", "bound", "request_id", "request_ids"]

#: Maximum number of IDs shown for a call with several requests.
_MAX_SHOWN = 8


class Server(Protocol):
    """Interface of the worker's model, which serves the requests."""

    def ids_now(self) -> Sequence[str]:
        """Return the IDs of the requests that this thread or task is processing."""

    def id_of(self, ref: Any) -> str:
        """Return the ID of a request, given the worker's reference to it."""


_bound: ContextVar[Optional[str]] = ContextVar("pytriton_request_id", default=None)
#: `server` is set in a thread that serves a model.
_thread_local = threading.local()
_of_process: Optional[weakref.ref[Server]] = None


def request_ids() -> list[str]:
    """Return the IDs of the requests in the current call; an empty list outside of a call."""
    one = _bound.get()
    if one is not None:
        return [one]
    server = _server()
    return [] if server is None else list(server.ids_now())


def request_id() -> str:
    """Return the IDs of the requests in the current call as one string, joined by commas.

    At most 8 IDs are included. The string is empty outside of a call.
    """
    ids = request_ids()
    more = len(ids) - _MAX_SHOWN
    return ",".join(ids[:_MAX_SHOWN]) + (f",… {more} more" if more > 0 else "")


@contextlib.contextmanager
def bound(request: Any) -> Iterator[str]:
    """Make a request the current one within this block, in a callable that processes a call's requests one by one.

    This applies to the current thread or task, and to those that copy its context. The block receives the ID.

    Args:
        request: a `Request`, or the ID of one
    """
    name = request if isinstance(request, str) else request.request_id
    token = _bound.set(name)
    try:
        yield name
    finally:
        _bound.reset(token)


class RequestIds(logging.Filter):
    """Logging filter that adds the attribute `request_id` to each log record. Add it to a handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ID to the record, and keep the record."""
        record.request_id = request_id()
        return True


def add_request_id(
    logger: Any, method_name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Processor for structlog that adds `request_id` to an event."""
    name = request_id()
    if name:
        event.setdefault("request_id", name)
    return event


# ── for the worker, and for Request ──────────────────────────────────────────────────────────────


def serve(server: Server) -> None:
    """Set the model that this process serves. Called by a worker that runs in its own process."""
    global _of_process
    _of_process = weakref.ref(server)


def serve_in_thread(server: Server) -> None:
    """Set the model that this thread serves. Called by a worker that runs in a thread."""
    _thread_local.server = weakref.ref(server)


def name_of(ref: Any) -> str:
    """Return the ID of a request that is being served, given the worker's reference to it."""
    server = _server()
    return "" if server is None else server.id_of(ref)


def _server() -> Optional[Server]:
    found: Optional[weakref.ref[Server]] = getattr(_thread_local, "server", _of_process)
    return None if found is None else found()
