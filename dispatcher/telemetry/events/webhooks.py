"""Webhooks: events are signed and posted to configured addresses. They are coalesced and retried, and never block the
daemon.

    event ──▶ queue, 1,000 events ──▶ a thread per webhook ──▶ POST, retried after 1, 2, 4 … 60 s, for an hour

The first event is posted immediately; events of the following ten seconds are posted together. Events of the same kind
about the same model and instance are coalesced: only the latest is posted, with their number in `repeats`.

The body is JSON: `{"host": …, "pid": …, "events": […]}`. Time and body are signed with a shared secret:
`HMAC-SHA256(secret, "TIME." + body)`. The secret is never
logged, nor is the address, which may contain one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import structlog

from pytriton._host.settings.parsing import toml_table
from pytriton._protocol.messages.client import Event
from pytriton._protocol.messages.metrics import WebhookMetrics
from pytriton.dispatcher.telemetry.events.kinds import KINDS

_log = structlog.get_logger(__name__)

#: How long `close` waits for the last posts, in seconds.
_CLOSE_TIMEOUT_S = 2.0
#: Maximum number of waiting events. Beyond it, the oldest are dropped.
_MAX_WAITING = 1000
#: Maximum number of events per request.
_MAX_PER_POST = 50
#: Minimum interval between requests, in seconds. (A crash loop under load emits ten events a second.)
_POST_INTERVAL_S = 10.0
_INITIAL_DELAY_S, _MAX_DELAY_S = 1.0, 60.0
#: Age at which an event that could not be posted is dropped, in seconds.
_MAX_AGE_S = 3600.0
#: Status codes from 400 to 499 that may be temporary.
_TEMPORARY_ERRORS = (408, 425, 429)

_encode = msgspec.json.Encoder().encode


class Webhooks:
    """The webhooks of a daemon."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._all = [Webhook(hook) for hook in hooks]

    def enqueue(self, event: Event) -> None:
        """Queue an event for all webhooks."""
        for one in self._all:
            one.enqueue(event)

    def unposted(self) -> dict[str, list[Event]]:
        """Return the events not posted yet, by webhook name, for the next version of the daemon."""
        return {one.name: one.unposted() for one in self._all}

    def adopt(self, unposted: Mapping[str, Sequence[Event]]) -> None:
        """Queue the events that the previous version of the daemon did not post."""
        for one in self._all:
            for event in unposted.get(one.name, ()):
                one.enqueue(event)

    def metrics(self) -> dict[str, WebhookMetrics]:
        """Return the counters of each webhook, by name."""
        return {one.name: one.metrics() for one in self._all}

    def close(self) -> None:
        """Post the queued events within a time limit, then stop."""
        for one in self._all:
            one.begin_close()
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        for one in self._all:
            one.join(max(0.0, deadline - time.monotonic()))


# ── one webhook ──────────────────────────────────────────────────────────────────────────────────


class _PostFailed(Exception):
    """Raised if a webhook answers with an error that may be temporary."""


class _PostRejected(Exception):
    """Raised if a webhook rejects events for good."""


class _Pending(NamedTuple):
    """The latest of several coalesced events. `repeats` is how many there were."""

    event: Event
    repeats: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """Key by which events are coalesced: events with the same key become one event."""
        return (self.event.kind, self.event.model, self.event.version, self.event.instance)


def _total(pending: Iterable[_Pending]) -> int:
    return sum(one.repeats for one in pending)


class Webhook:
    """Queue of events for one webhook, and the thread that posts them."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._waiting: dict[tuple[object, ...], _Pending] = {}
        self._changed = threading.Condition()
        self._posting: list[_Pending] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self._sent = self._dropped = self._failures = 0
        self._failure_logged = False
        # Imported here, because it imports urllib.request and http.client, and few daemons have webhooks.
        from pytriton.dispatcher.telemetry.events.webhook_http import HttpPoster

        self._poster = HttpPoster()

    @property
    def name(self) -> str:
        """Name of the webhook, in metrics and in the log."""
        return self._hook.name

    def metrics(self) -> WebhookMetrics:
        """Return the number of events sent, dropped and waiting, and of failed requests."""
        with self._changed:
            waiting = _total(self._waiting.values())
            return WebhookMetrics(self._sent, self._dropped, self._failures, waiting)

    def enqueue(self, event: Event) -> None:
        """Queue an event if it matches the webhook's filters. Never blocks."""
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
            elif len(self._waiting) >= _MAX_WAITING:
                self._dropped += self._waiting.pop(next(iter(self._waiting))).repeats
            self._waiting[pending.key] = pending
            if self._thread is None:
                name = f"webhook {hook.name}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()  # raises if no thread can be started now; the next event retries
                self._thread = thread
            self._changed.notify()

    def unposted(self) -> list[Event]:
        """Return the queued events, without their repeat counts.

        Events that are being posted are included, so they may be posted twice.
        """
        with self._changed:
            return [one.event for one in (*self._posting, *self._waiting.values())]

    def begin_close(self) -> None:
        """Make the thread post the queued events once more, and then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for the thread to stop."""
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
                keys = list(self._waiting)[:_MAX_PER_POST]
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

    def _deliver(self, pending: Sequence[_Pending]) -> bool:
        """Post events. If the attempt has to be repeated, queue them again and return False."""
        try:
            self._post(pending)
        except _PostRejected as rejection:
            self._count(dropped=_total(pending), failed=True)
            self._log_failure(f"{rejection}: {_total(pending)} events dropped")
            return True
        except Exception as error:
            # For example, no thread can be started. If this thread ended, no event would be posted any more.
            self._put_back(pending)
            self._log_failure(f"{_reason(error)}; retrying")
            return False
        self._count(sent=_total(pending))
        if self._failure_logged:
            self._failure_logged = False
            _log.info("delivering events to a webhook again", webhook=self.name)
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
        status = self._poster.post(hook.url, body, headers)
        if 200 <= status < 300:
            return
        text = f"it answered {status}"
        raise (
            _PostFailed(text)
            if status >= 500 or status in _TEMPORARY_ERRORS
            else _PostRejected(text)
        )

    def _put_back(self, pending: Sequence[_Pending]) -> None:
        late = time.time() - _MAX_AGE_S
        with self._changed:
            before = _total((*pending, *self._waiting.values()))
            waiting = {one.key: one for one in pending if one.event.at > late}
            for key, newer in self._waiting.items():
                older = waiting.pop(key, None)
                repeats = newer.repeats + (older.repeats if older is not None else 0)
                waiting[key] = _Pending(newer.event, repeats)
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
            _log.warning("could not deliver events to a webhook", webhook=self.name, reason=reason)


def signed(secret: bytes, body: bytes, at: int) -> dict[str, str]:
    """Return the headers that sign a request: the time, and the HMAC of time and body."""
    digest = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Pytriton-Timestamp": str(at), "Pytriton-Signature": f"sha256={digest}"}


def _reason(error: Exception) -> str:
    """Describe an error. Leave out the webhook's address, which some errors have in their messages."""
    if isinstance(error, _PostFailed):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


# ── the webhooks file: TOML, with a table `[[webhook]]` for each webhook ─────────────────────────

#: Minimum length of a secret, in bytes.
MIN_SECRET_LENGTH = 16
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_HOOKS = 32


class WebhookError(Exception):
    """Raised if the webhooks file, or a secret that it names, is invalid. The message says what to fix."""


class Hook(NamedTuple):
    """A configured webhook. If `kinds` or `models` is empty, all kinds or models match."""

    name: str
    url: str
    secret: bytes
    kinds: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()

    def __repr__(self) -> str:  # without address and secret, which must not appear in a log
        return f"Hook({self.name!r})"


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    url: str
    secret_file: str
    kinds: list[str] = []
    models: list[str] = []


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    webhook: list[_Entry] = []


def read_hooks(path: str | None) -> list[Hook]:
    """Read the webhooks in a file; return an empty list if `path` is None.

    Raises:
        WebhookError: the file or a secret is invalid
    """
    if path is None:
        return []
    file = Path(path)
    try:
        entries = msgspec.convert(_read_toml(file), _File).webhook
    except msgspec.ValidationError as error:
        raise WebhookError(f"webhooks = {path}: {error}") from None
    hooks: dict[str, Hook] = {}
    for entry in entries:
        where = f"webhooks = {path}: webhook {entry.name!r:.80}"
        if not _NAME.fullmatch(entry.name) or entry.name in hooks:
            raise WebhookError(
                f"{where}: each webhook needs a unique name of letters, digits, _ . -"
            )
        hooks[entry.name] = _hook(entry, file.parent, where)
    if len(hooks) > _MAX_HOOKS:
        raise WebhookError(
            f"webhooks = {path}: {len(hooks)} webhooks, but at most {_MAX_HOOKS} are allowed"
        )
    return list(hooks.values())


def _read_toml(file: Path) -> Any:
    try:
        return toml_table(file)
    except OSError as error:
        raise WebhookError(f"webhooks = {file}: {error.strerror}") from None
    except ValueError as error:  # invalid TOML or UTF-8
        raise WebhookError(f"webhooks = {file}: {error}") from None


def _hook(entry: _Entry, folder: Path, where: str) -> Hook:
    try:
        parts = urlsplit(entry.url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(one.isspace() or not one.isprintable() for one in entry.url):
        raise WebhookError(f"{where}: url must begin with http:// or https://")
    unknown = sorted(set(entry.kinds) - set(KINDS))
    if unknown:
        raise WebhookError(
            f"{where}: unknown event kind {', '.join(unknown)}; known kinds: {', '.join(KINDS)}"
        )
    secret = _secret(folder / entry.secret_file, where)
    return Hook(entry.name, entry.url, secret, frozenset(entry.kinds), frozenset(entry.models))


def _secret(file: Path, where: str) -> bytes:
    try:
        mode = file.stat().st_mode
        secret = file.read_bytes().strip()
    except OSError as error:
        raise WebhookError(f"{where}: secret_file {file}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise WebhookError(f"{where}: secret_file {file} can be read by others: chmod 600 {file}")
    if len(secret) < MIN_SECRET_LENGTH:
        raise WebhookError(
            f"{where}: secret_file {file}: the secret must have at least {MIN_SECRET_LENGTH} bytes"
        )
    return secret
