"""IDs of the requests being served, for log lines and for the callable's own outgoing calls.

A request's ID is the request ID set by its client (KServe v2), else the header `x-request-id`, else the trace ID
of the header `traceparent`, if the daemon forwards these headers. A request without any of them gets a generated ID.
IDs are generated on demand: a callable that does not ask for them does not pay for them.

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
    """The interface of a worker's model that serves requests."""

    def ids_now(self) -> Sequence[str]:
        """Return the IDs of the requests that this thread or task is serving."""

    def id_of(self, ref: Any) -> str:
        """Return the ID of a request, given the worker's record of it."""


_bound: ContextVar[Optional[str]] = ContextVar("pytriton_request_id", default=None)
#: `server`: set in a thread that serves a model.
_here = threading.local()
_of_process: Optional[weakref.ref[Server]] = None


def request_ids() -> list[str]:
    """Return the IDs of the requests in the current call; empty when nothing is being served."""
    one = _bound.get()
    if one is not None:
        return [one]
    server = _server()
    return [] if server is None else list(server.ids_now())


def request_id() -> str:
    """Return the ID of the request in the current call; several IDs are joined by commas.

    Empty when nothing is being served.
    """
    ids = request_ids()
    more = len(ids) - _MAX_SHOWN
    return ",".join(ids[:_MAX_SHOWN]) + (f",… {more} more" if more > 0 else "")


@contextlib.contextmanager
def bound(request: Any) -> Iterator[str]:
    """Make one request the current one within this block, for callables that handle a call's requests one by one.

    Applies to this thread or task, and to those that copy its context.

    Args:
        request: a `Request`, or an ID
    """
    name = request if isinstance(request, str) else request.request_id
    token = _bound.set(name)
    try:
        yield name
    finally:
        _bound.reset(token)


class RequestIds(logging.Filter):
    """A logging filter that adds `request_id` to each log record; add it to a handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ID to the record."""
        record.request_id = request_id()
        return True


def add_request_id(
    logger: Any, method_name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Add `request_id` to an event: a processor for structlog."""
    name = request_id()
    if name:
        event.setdefault("request_id", name)
    return event


# ── for the worker, and for Request ──────────────────────────────────────────────────────────────


def serve(server: Server) -> None:
    """Set the model that serves in this process. Called by a worker with its own process."""
    global _of_process
    _of_process = weakref.ref(server)


def serve_in_thread(server: Server) -> None:
    """Set the model that serves in this thread. Called by a worker that runs in a thread."""
    _here.server = weakref.ref(server)


def name_of(ref: Any) -> str:
    """Return the ID of a request that is being served, given the worker's record of it."""
    server = _server()
    return "" if server is None else server.id_of(ref)


def _server() -> Optional[Server]:
    found: Optional[weakref.ref[Server]] = getattr(_here, "server", _of_process)
    return None if found is None else found()
