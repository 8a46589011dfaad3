"""Webhooks: post events to configured addresses, signed, coalesced and retried, without blocking the daemon.

    event ──▶ queue, 1,000 events ──▶ a thread per webhook ──▶ POST, retried after 1, 2, 4 … 60 s, for an hour

The first event is posted at once; those that follow within ten seconds are posted together. Of several events of one
kind about the same model and instance, only the latest is posted, with `repeats`.

The body is JSON: `{"host": …, "pid": …, "events": […]}`. Time and body are signed with a shared secret:
`HMAC-SHA256(secret, "TIME." + body)`. Neither the secret nor the address, which may contain one, is logged.
"""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pytriton._host.settings.parsing import toml_table
from pytriton._protocol.messages.events import Event
from pytriton._protocol.messages.metrics import WebhookMetrics
from pytriton.dispatcher.telemetry.events.kinds import KINDS

if TYPE_CHECKING:
    from pytriton.dispatcher.telemetry.events.webhook import Webhook


#: How long a stop waits for the last posts.
_CLOSE_S = 2.0


class Webhooks:
    """All webhooks of a daemon."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._all: list[Webhook] = []
        if hooks:
            # Imported lazily: it needs urllib.request and http.client, and few daemons have webhooks.
            from pytriton.dispatcher.telemetry.events.webhook import Webhook

            self._all = [Webhook(hook) for hook in hooks]

    def take(self, event: Event) -> None:
        """Pass an event to all webhooks."""
        for one in self._all:
            one.take(event)

    def unposted(self) -> dict[str, list[Event]]:
        """Return each webhook's unposted events, for the next version of the daemon."""
        return {one.name: one.unposted() for one in self._all}

    def adopt(self, unposted: Mapping[str, Sequence[Event]]) -> None:
        """Queue the events that the previous version of the daemon did not post."""
        for one in self._all:
            for event in unposted.get(one.name, ()):
                one.take(event)

    def figures(self) -> dict[str, WebhookMetrics]:
        """Return the counters of each webhook."""
        return {one.name: one.figures() for one in self._all}

    def close(self) -> None:
        """Post what waits, within a time limit."""
        for one in self._all:
            one.begin_close()
        deadline = time.monotonic() + _CLOSE_S
        for one in self._all:
            one.join(max(0.0, deadline - time.monotonic()))


# ── The webhooks file (setting `webhooks`): TOML, with a table `[[webhook]]` for each webhook ──

#: Minimum length of a secret in bytes.
MIN_SECRET_LENGTH = 16
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_HOOKS = 32


class WebhookError(Exception):
    """The webhooks file, or a secret that it names, is invalid; the text says what to fix."""


class Hook(NamedTuple):
    """One webhook. Empty `kinds` or `models` match all."""

    name: str
    url: str
    secret: bytes
    kinds: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()

    def __repr__(self) -> str:  # neither the address nor the secret may appear in a log
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
    """Return the webhooks of a file; an empty list if no file is configured.

    Raises:
        WebhookError: the file is invalid.
    """
    if path is None:
        return []
    file = Path(path)
    try:
        entries = msgspec.convert(_parsed(file), _File).webhook
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


def _parsed(file: Path) -> Any:
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
        raise WebhookError(f"{where}: url must be an address with http:// or https://")
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
