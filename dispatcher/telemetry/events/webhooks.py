"""Webhooks: post events to configured addresses, signed, coalesced and retried, without blocking the daemon.

    event ──▶ queue, 1,000 events ──▶ a thread per webhook ──▶ POST, retried after 1, 2, 4 … 60 s, for an hour

The first event is posted at once; those that follow within ten seconds are posted together. Of several events of one
kind about the same model and instance, only the latest is posted, with `repeats`.

The body is JSON: `{"host": …, "pid": …, "events": […]}`. Time and body are signed with a shared secret:
`HMAC-SHA256(secret, "TIME." + body)`. Neither the secret nor the address, which may contain one, is logged.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytriton._protocol.messages.events import Event
from pytriton._protocol.messages.metrics import WebhookMetrics
from pytriton.dispatcher.telemetry.events.webhook_settings import Hook

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
