"""An upgrade of the daemon as a client sees it: it asks, the daemon becomes another version, and an event tells."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytriton._protocol import messages

#: Between two looks for the event.
_LOOK_S = 0.1
#: What the next version gets to take over in, on a machine that is overloaded.
_TAKES_S = 120.0
#: Between the end of what ran and a fresh start no daemon seems to run.
_GONE_S = 30.0
_UPGRADED, _NOT, _AFRESH = "upgraded", "not_upgraded", "started"

Ask = Callable[[messages.AnyMessage], messages.AnyMessage]


class NotUpgraded(Exception):
    """The daemon is still what it was, or it has started afresh; says which, and why."""


def upgrade(
    ask: Ask, wish: messages.Upgrade, is_gone: Callable[[Exception], bool]
) -> messages.Event:
    """Have the daemon upgraded; return the event that tells of it.

    Args:
        ask: returns the daemon's answer to a message, and raises what it likes where that is a failure
        wish: what it is asked for
        is_gone: whether that says that no daemon runs: so it is for a moment when it starts afresh

    Raises:
        NotUpgraded: it was not.
    """
    before = max((event.serial for event in _events(ask, messages.GetEvents(limit=1))), default=0)
    ask(wish)
    question = messages.GetEvents(kinds=[_UPGRADED, _NOT, _AFRESH], after=before)
    deadline = time.monotonic() + _TAKES_S
    gone_until = time.monotonic() + _GONE_S
    while time.monotonic() < deadline:
        try:
            found = _events(ask, question)
            gone_until = time.monotonic() + _GONE_S
        except Exception as error:
            if not is_gone(error) or time.monotonic() > gone_until:
                raise
            found = []
        for event in found:
            if event.kind == _UPGRADED:
                return event
            if event.kind == _AFRESH:
                raise NotUpgraded(
                    "the next version could not go on with what ran, so the daemon started afresh, and serves what is "
                    f"kept in the state directory: {event.reason}"
                )
            raise NotUpgraded(event.reason)
        time.sleep(_LOOK_S)
    raise NotUpgraded(f"the daemon has not said within {_TAKES_S:g} s what became of it")


def _events(ask: Ask, question: messages.GetEvents) -> list[messages.Event]:
    answer = ask(question)
    assert isinstance(answer, messages.EventList)  # what answers GetEvents, see _protocol/messages/
    return answer.events
