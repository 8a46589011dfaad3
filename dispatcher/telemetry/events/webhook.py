"""A webhook: posts events to one address, signed, coalesced and retried; nothing waits for it (webhooks.py)."""

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
from pytriton._protocol.messages.figures import WebhookFigures
from pytriton.dispatcher.telemetry.events.webhook_settings import Hook

_log = structlog.get_logger(__name__)

#: Events that wait; the oldest make room.
_MOST_WAITING = 1000
#: Events in one request.
_MOST_AT_ONCE = 50
#: Seconds from one request to the next. A crash loop under load emits ten events a second.
_POST_INTERVAL_S = 10.0
#: What an address may take for each piece of its answer, and for all of it.
_ANSWER_S = 10.0
_WHOLE_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
#: An event that could not be posted for so long is left out.
_GIVE_UP_S = 3600.0
#: Answers of 400 to 499 after which the same may be taken later.
_LATER = (408, 425, 429)

_encode = msgspec.json.Encoder().encode


class _Refused(Exception):
    """The address does not want these events, now or later."""


class _Pending(NamedTuple):
    """The latest of `repeats` events of one kind about the same model and instance."""

    event: Event
    repeats: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for events that are coalesced."""
        return (self.event.kind, self.event.model, self.event.version, self.event.instance)


def _total(pending: Iterable[_Pending]) -> int:
    return sum(one.repeats for one in pending)


class Webhook:
    """One address, with the thread that posts to it. `take` is called for every event."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._waiting: dict[tuple[object, ...], _Pending] = {}
        self._changed = threading.Condition()
        self._posting: list[_Pending] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self._sent = self._dropped = self._failures = 0
        self._told = False
        self._deadline = _Deadline()
        self._opener = urllib.request.build_opener(
            _NoRedirects, _Http(self._deadline), _Https(self._deadline)
        )

    @property
    def name(self) -> str:
        """The name that it has in metrics and in the log."""
        return self._hook.name

    def figures(self) -> WebhookFigures:
        """Return what has become of its events."""
        with self._changed:
            waiting = _total(self._waiting.values())
            return WebhookFigures(self._sent, self._dropped, self._failures, waiting)

    def take(self, event: Event) -> None:
        """Have an event posted, if it is one that is wanted; returns at once."""
        hook = self._hook
        if (hook.kinds and event.kind not in hook.kinds) or (
            hook.models and event.model not in hook.models
        ):
            return
        with self._changed:
            pending = _Pending(event)
            former = self._waiting.pop(pending.key, None)
            if former is not None:
                pending = _Pending(event, former.repeats + 1)
            elif len(self._waiting) >= _MOST_WAITING:
                self._dropped += self._waiting.pop(next(iter(self._waiting))).repeats
            self._waiting[pending.key] = pending
            if self._thread is None:
                name = f"webhook {hook.name}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()  # if there can be no more threads now, the next event has it tried again
                self._thread = thread
            self._changed.notify()

    def unposted(self) -> list[Event]:
        """Return the events that wait, and those being posted, which may be posted twice; not how often they repeat."""
        with self._changed:
            return [one.event for one in (*self._posting, *self._waiting.values())]

    def begin_close(self) -> None:
        """Have what waits posted once more, and then nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for that."""
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
                keys = list(self._waiting)[:_MOST_AT_ONCE]
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
                backoff_s = min(max(_FIRST_PAUSE_S, backoff_s * 2), _LONGEST_PAUSE_S)
                pause_s = backoff_s

    def _deliver(self, pending: Sequence[_Pending]) -> bool:
        """Post events. Return False if they were put back to be retried."""
        try:
            self._post(pending)
        except _Refused as refusal:
            self._count(dropped=_total(pending), failed=True)
            self._tell(f"{refusal}: {_total(pending)} events are left out")
            return True
        except Exception as error:
            # Say, there can be no more threads: without this one, nothing is posted.
            self._put_back(pending)
            self._tell(f"{_reason(error)}; it is tried again")
            return False
        self._count(sent=_total(pending))
        if self._told:
            self._told = False
            _log.info("a webhook takes events again", webhook=self.name)
        return True

    def _post(self, pending: Sequence[_Pending]) -> None:
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
                raise _Refused(f"it answers {error.code}") from None
            raise

    def _put_back(self, pending: Sequence[_Pending]) -> None:
        late = time.time() - _GIVE_UP_S
        with self._changed:
            before = _total((*pending, *self._waiting.values()))
            waiting = {one.key: one for one in pending if one.event.at > late}
            for key, newer in self._waiting.items():
                older = waiting.pop(key, None)
                repeats = newer.repeats + (older.repeats if older is not None else 0)
                waiting[key] = _Pending(newer.event, repeats)
            for key in list(waiting)[: max(0, len(waiting) - _MOST_WAITING)]:
                del waiting[key]
            self._waiting = waiting
            self._failures += 1
            self._dropped += before - _total(waiting.values())

    def _count(self, *, sent: int = 0, dropped: int = 0, failed: bool = False) -> None:
        with self._changed:
            self._sent += sent
            self._dropped += dropped
            self._failures += failed

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            _log.warning("a webhook does not take events", webhook=self.name, reason=reason)


def signed(secret: bytes, body: bytes, at: int) -> dict[str, str]:
    """Return the headers that tell the receiver who has posted a body, and when."""
    digest = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Pytriton-Timestamp": str(at), "Pytriton-Signature": f"sha256={digest}"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Events go where the operator has said, and nowhere else."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


class _Deadline:
    """Cuts off what takes too long in all: a socket's timeout begins again with each byte that an address drips."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._passed = False

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """End the connections that are made meanwhile, if this takes too long."""
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
        """Take note of a connection, by a descriptor of our own: TLS takes that one over."""
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
                with contextlib.suppress(OSError):  # the address has closed it
                    self._connection.shutdown(socket.SHUT_RDWR)


class _Connection(http.client.HTTPConnection):
    deadline: _Deadline

    def connect(self) -> None:
        super().connect()
        self.deadline.watch(self.sock)


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """`HTTPSConnection.connect` calls ours, and begins with TLS then."""


def _connection(
    kind: type[_Connection], deadline: _Deadline, *arguments: Any, **more: Any
) -> _Connection:
    made = kind(*arguments, **more)
    made.deadline = deadline
    return made


class _Http(urllib.request.HTTPHandler):
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
    """Say what went wrong without the address, which some errors repeat."""
    if isinstance(error, urllib.error.HTTPError):
        return f"it answers {error.code}"
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return type(inner).__name__
