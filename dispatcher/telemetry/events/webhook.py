"""A webhook: posts events to one address, signed, coalesced and retried, without blocking the daemon (webhooks.py)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import structlog

from pytriton._protocol.messages.events import Event
from pytriton._protocol.messages.metrics import WebhookMetrics
from pytriton.dispatcher.telemetry.events.webhooks import Hook

_log = structlog.get_logger(__name__)

#: Maximum number of waiting events; the oldest are dropped.
_MAX_WAITING = 1000
#: Maximum number of events per request.
_MAX_AT_ONCE = 50
#: Minimum seconds between requests. A crash loop under load emits ten events a second.
_POST_INTERVAL_S = 10.0
#: Timeouts for each read of the answer, and for the whole request.
_ANSWER_S = 10.0
_WHOLE_S = 30.0
_INITIAL_DELAY_S, _MAX_DELAY_S = 1.0, 60.0
#: An event that could not be posted for this long is dropped.
_GIVE_UP_S = 3600.0
#: Client errors (400 to 499) that may be temporary.
_LATER = (408, 425, 429)

_encode = msgspec.json.Encoder().encode


class _PostRefused(Exception):
    """The address rejected these events permanently."""


class _PendingPost(NamedTuple):
    """The latest of `repeats` events of one kind about the same model and instance."""

    event: Event
    repeats: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """The key of coalescing: events with equal keys are coalesced."""
        return (self.event.kind, self.event.model, self.event.version, self.event.instance)


def _total(pending: Iterable[_PendingPost]) -> int:
    return sum(one.repeats for one in pending)


class Webhook:
    """One address, and the thread that posts to it. `take` is called for every event."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._waiting: dict[tuple[object, ...], _PendingPost] = {}
        self._changed = threading.Condition()
        self._posting: list[_PendingPost] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self._sent = self._dropped = self._failures = 0
        self._failure_logged = False
        self._deadline = _Deadline()
        self._opener = urllib.request.build_opener(
            _NoRedirects, _WebhookHttp(self._deadline), _Https(self._deadline)
        )

    @property
    def name(self) -> str:
        """The name of the webhook in metrics and in the log."""
        return self._hook.name

    def figures(self) -> WebhookMetrics:
        """Return the counters of its events."""
        with self._changed:
            waiting = _total(self._waiting.values())
            return WebhookMetrics(self._sent, self._dropped, self._failures, waiting)

    def take(self, event: Event) -> None:
        """Queue an event for posting if it matches the filters; never blocks."""
        hook = self._hook
        if (hook.kinds and event.kind not in hook.kinds) or (
            hook.models and event.model not in hook.models
        ):
            return
        with self._changed:
            pending = _PendingPost(event)
            former = self._waiting.pop(pending.key, None)
            if former is not None:
                pending = _PendingPost(event, former.repeats + 1)
            elif len(self._waiting) >= _MAX_WAITING:
                self._dropped += self._waiting.pop(next(iter(self._waiting))).repeats
            self._waiting[pending.key] = pending
            if self._thread is None:
                name = f"webhook {hook.name}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()  # if no thread can be started now, the next event retries
                self._thread = thread
            self._changed.notify()

    def unposted(self) -> list[Event]:
        """Return the events that wait, without their repeat counts. Those being posted are included and may be posted
        twice.
        """
        with self._changed:
            return [one.event for one in (*self._posting, *self._waiting.values())]

    def begin_close(self) -> None:
        """Post what waits once, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has stopped."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        pause_s = backoff_s = 0.0
        while True:
            with self._changed:
                if pause_s:
                    self._changed.wait_for(lambda: self._closing, pause_s)
                self._changed.wait_for(lambda: self._closing or self._waiting)
                last = self._closing
                keys = list(self._waiting)[:_MAX_AT_ONCE]
                self._posting = [self._waiting.pop(key) for key in keys]
            if not self._posting:
                return
            delivered = self._deliver(self._posting)
            self._posting = []
            if delivered:
                backoff_s, pause_s = 0.0, _POST_INTERVAL_S
            elif last:
                return
            else:
                backoff_s = min(max(_INITIAL_DELAY_S, backoff_s * 2), _MAX_DELAY_S)
                pause_s = backoff_s

    def _deliver(self, pending: Sequence[_PendingPost]) -> bool:
        """Post events. Return False if they were put back for a retry."""
        try:
            self._post(pending)
        except _PostRefused as refusal:
            self._count(dropped=_total(pending), failed=True)
            self._log_failure(f"{refusal}: {_total(pending)} events dropped")
            return True
        except Exception as error:
            # For example, no more threads can be started. If this thread ended, nothing would be posted again.
            self._put_back(pending)
            self._log_failure(f"{_reason(error)}; retrying")
            return False
        self._count(sent=_total(pending))
        if self._failure_logged:
            self._failure_logged = False
            _log.info("webhook accepts events again", webhook=self.name)
        return True

    def _post(self, pending: Sequence[_PendingPost]) -> None:
        hook = self._hook
        events = [
            {**msgspec.to_builtins(event), "repeats": repeats} if repeats > 1 else event
            for event, repeats in pending
        ]
        body = _encode({"host": socket.gethostname(), "pid": os.getpid(), "events": events})
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "pytriton-daemon",
            "Pytriton-Delivery": f"{pending[0].event.serial}-{pending[-1].event.serial}",
            **signed(hook.secret, body, int(time.time())),
        }
        request = urllib.request.Request(hook.url, body, headers, method="POST")
        try:
            with self._deadline.kept(), self._opener.open(request, timeout=_ANSWER_S):
                return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 and error.code not in _LATER:
                raise _PostRefused(f"it answered {error.code}") from None
            raise

    def _put_back(self, pending: Sequence[_PendingPost]) -> None:
        late = time.time() - _GIVE_UP_S
        with self._changed:
            before = _total((*pending, *self._waiting.values()))
            waiting = {one.key: one for one in pending if one.event.at > late}
            for key, newer in self._waiting.items():
                older = waiting.pop(key, None)
                repeats = newer.repeats + (older.repeats if older is not None else 0)
                waiting[key] = _PendingPost(newer.event, repeats)
            for key in list(waiting)[: max(0, len(waiting) - _MAX_WAITING)]:
                del waiting[key]
            self._waiting = waiting
            self._failures += 1
            self._dropped += before - _total(waiting.values())

    def _count(self, *, sent: int = 0, dropped: int = 0, failed: bool = False) -> None:
        with self._changed:
            self._sent += sent
            self._dropped += dropped
            self._failures += failed

    def _log_failure(self, reason: str) -> None:
        if not self._failure_logged:
            self._failure_logged = True
            _log.warning("webhook does not accept events", webhook=self.name, reason=reason)


def signed(secret: bytes, body: bytes, at: int) -> dict[str, str]:
    """Return the headers that authenticate the sender and the time of a request."""
    digest = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Pytriton-Timestamp": str(at), "Pytriton-Signature": f"sha256={digest}"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: events go only to the address that the operator configured."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


class _Deadline:
    """Enforces a total time limit, since a socket's timeout restarts with every byte received."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._passed = False

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Shut down the connections that are made within the context if it takes too long."""
        self._passed = False
        timer = threading.Timer(_WHOLE_S, self._pass)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            self._follow(None)

    def watch(self, connection: socket.socket) -> None:
        """Watch a connection through a duplicate of its descriptor, since TLS takes over the original."""
        self._follow(connection.dup())
        if self._passed:
            raise TimeoutError

    def _follow(self, connection: socket.socket | None) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = connection

    def _pass(self) -> None:
        with self._lock:
            self._passed = True
            if self._connection is not None:
                with contextlib.suppress(OSError):  # the peer has closed it
                    self._connection.shutdown(socket.SHUT_RDWR)


class _Connection(http.client.HTTPConnection):
    deadline: _Deadline

    def connect(self) -> None:
        super().connect()
        self.deadline.watch(self.sock)


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """Its `connect` calls ours before it starts TLS."""


def _connection(
    kind: type[_Connection], deadline: _Deadline, *arguments: Any, **more: Any
) -> _Connection:
    made = kind(*arguments, **more)
    made.deadline = deadline
    return made


class _WebhookHttp(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_connection, _Connection, self._deadline), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_connection, _SecureConnection, self._deadline), req)


def _reason(error: Exception) -> str:
    """Describe an error without the address, which some errors repeat."""
    if isinstance(error, urllib.error.HTTPError):
        return f"it answered {error.code}"
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return type(inner).__name__
