"""The ids of the requests that are being served, for log lines and for what a callable asks of others.

A request's id is what its client says: the id of the request (KServe v2), else the header `x-request-id`, else the
trace of the header `traceparent`, as far as the daemon forwards these headers. A request without any gets one. Ids are
made when somebody asks: a callable that does not, does not pay for them.

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

#: Of a call with more requests, so many ids are shown.
_MOST_SHOWN = 8


class Server(Protocol):
    """The model of a worker, which serves requests."""

    def ids_now(self) -> Sequence[str]:
        """Return the ids of the requests that this thread, or this task, serves now."""

    def id_of(self, ref: Any) -> str:
        """Return the id of one of them, by what the worker knows of it."""


_bound: ContextVar[Optional[str]] = ContextVar("pytriton_request_id", default=None)
#: `server`: of a thread that serves a model.
_here = threading.local()
_of_process: Optional[weakref.ref[Server]] = None


def request_ids() -> list[str]:
    """Return the ids of the requests in the call at hand; none where nothing is being served."""
    one = _bound.get()
    if one is not None:
        return [one]
    server = _server()
    return [] if server is None else list(server.ids_now())


def request_id() -> str:
    """Return the id of the request in the call at hand; of several, their ids with commas between them.

    It is empty where nothing is being served.
    """
    ids = request_ids()
    more = len(ids) - _MOST_SHOWN
    return ",".join(ids[:_MOST_SHOWN]) + (f",… {more} more" if more > 0 else "")


@contextlib.contextmanager
def bound(request: Any) -> Iterator[str]:
    """Within this block, one request is the one at hand: for callables that take the requests of a call one by one.

    It holds for this thread or this task, and for those that copy its context.

    Args:
        request: a `Request`, or an id
    """
    name = request if isinstance(request, str) else request.request_id
    token = _bound.set(name)
    try:
        yield name
    finally:
        _bound.reset(token)


class RequestIds(logging.Filter):
    """A filter that gives each log record a `request_id`; put it on a handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Give the record its id."""
        record.request_id = request_id()
        return True


def add_request_id(
    logger: Any, method_name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Give an event its `request_id`: a processor for structlog."""
    name = request_id()
    if name:
        event.setdefault("request_id", name)
    return event


# ── for the worker, and for Request ──────────────────────────────────────────────────────────────


def serve(server: Server) -> None:
    """Tell who serves in this process. Called by a worker that has its process for itself."""
    global _of_process
    _of_process = weakref.ref(server)


def serve_in_thread(server: Server) -> None:
    """Tell who serves in this thread. Called by a worker that is a thread."""
    _here.server = weakref.ref(server)


def name_of(ref: Any) -> str:
    """Return the id of a request that is being served, by what the worker knows of it."""
    server = _server()
    return "" if server is None else server.id_of(ref)


def _server() -> Optional[Server]:
    found: Optional[weakref.ref[Server]] = getattr(_here, "server", _of_process)
    return None if found is None else found()
