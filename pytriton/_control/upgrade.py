"""The client side of an upgrade of the daemon: requests it, and waits for the event that reports the result."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytriton._protocol import messages

#: Interval between queries for the event, in seconds.
_POLL_INTERVAL_S = 0.1
#: Timeout of the takeover by the next version, with room for an overloaded machine, in seconds.
_TIMEOUT_S = 120.0
#: Maximum time without a running daemon, between the exit of the old one and its restart, in seconds.
_MAX_GONE_S = 30.0
_UPGRADED, _FAILED, _RESTARTED = "upgraded", "upgrade_failed", "started"

Ask = Callable[[messages.AnyMessage], messages.AnyMessage]


class NotUpgraded(Exception):
    """The upgrade failed; the text says why, and whether the old version kept running or the daemon was restarted."""


def upgrade(
    ask: Ask, request: messages.Upgrade, is_gone: Callable[[Exception], bool]
) -> messages.Event:
    """Upgrade the daemon, and return the event that reports the upgrade.

    Args:
        ask: sends a message to the daemon and returns the answer; raises any exception on failure
        request: the upgrade request
        is_gone: returns whether an exception of `ask` means that no daemon is running, as during a restart

    Raises:
        NotUpgraded: the upgrade failed
    """
    before = max((event.serial for event in _events(ask, messages.GetEvents(limit=1))), default=0)
    ask(request)
    query = messages.GetEvents(kinds=[_UPGRADED, _FAILED, _RESTARTED], after=before)
    deadline = time.monotonic() + _TIMEOUT_S
    gone_until = time.monotonic() + _MAX_GONE_S
    while time.monotonic() < deadline:
        try:
            found = _events(ask, query)
            gone_until = time.monotonic() + _MAX_GONE_S
        except Exception as error:
            if not is_gone(error) or time.monotonic() > gone_until:
                raise
            found = []
        for event in found:
            if event.kind == _UPGRADED:
                return event
            if event.kind == _RESTARTED:
                raise NotUpgraded(
                    "the next version could not take over the running state, so the daemon was restarted. It serves the "
                    f"models persisted in the state directory. Reason: {event.reason}"
                )
            raise NotUpgraded(event.reason)
        time.sleep(_POLL_INTERVAL_S)
    raise NotUpgraded(
        f"the daemon did not report the result of the upgrade within {_TIMEOUT_S:g} s"
    )


def _events(ask: Ask, query: messages.GetEvents) -> list[messages.Event]:
    answer = ask(query)
    # The answer to GetEvents, see _protocol/messages/.
    assert isinstance(answer, messages.EventList)
    return answer.events
