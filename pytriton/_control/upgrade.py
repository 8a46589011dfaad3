"""An upgrade of the daemon, from the client's side: request it, and wait for the event that reports the result."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytriton._protocol import messages

#: Interval between queries for the event.
_POLL_INTERVAL_S = 0.1
#: Time that the next version gets to take over, even on an overloaded machine.
_TIMEOUT_S = 120.0
#: Time during which no daemon may be running, between the exit of the old one and a restart.
_MAX_GONE_S = 30.0
_UPGRADED, _FAILED, _RESTARTED = "upgraded", "upgrade_failed", "started"

Ask = Callable[[messages.AnyMessage], messages.AnyMessage]


class NotUpgraded(Exception):
    """The daemon is still the old version, or it was restarted; the text says which, and why."""


def upgrade(
    ask: Ask, request: messages.Upgrade, is_gone: Callable[[Exception], bool]
) -> messages.Event:
    """Upgrade the daemon; return the event that reports it.

    Args:
        ask: returns the daemon's answer to a message, or raises any exception on failure
        request: the upgrade request
        is_gone: returns whether such an exception means that no daemon runs, as during a restart

    Raises:
        NotUpgraded: the daemon was not upgraded.
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
                    "the next version could not take over the running state, so the daemon was restarted, and serves the models "
                    f"persisted in the state directory: {event.reason}"
                )
            raise NotUpgraded(event.reason)
        time.sleep(_POLL_INTERVAL_S)
    raise NotUpgraded(
        f"the daemon has not reported the result of the upgrade within {_TIMEOUT_S:g} s"
    )


def _events(ask: Ask, query: messages.GetEvents) -> list[messages.Event]:
    answer = ask(query)
    # The answer to GetEvents, see _protocol/messages/.
    assert isinstance(answer, messages.EventList)
    return answer.events
