"""Which events a client's query returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.virtual_time import VirtualLoop

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher import explanations
from pytriton.dispatcher.explanations import Explainer

#: Serial, kind, model; the first at 1001 s, the second at 1002 s.
_LOG = [
    (1, "started", ""),
    (2, "registered", "m"),
    (3, "crashed", "m"),
    (4, "registered", "n"),
    (5, "crashed", "m"),
]


class Served:
    """Knows the models `m`, `n` and `quiet`, the last without events."""

    def by_name(self, name: str) -> Any:
        raise RemoteFailure(ErrorKind.NOT_FOUND, f"no model {name!r} is registered")


class Daemon:
    """A daemon that has emitted the events of _LOG."""

    registry = SimpleNamespace(
        served=Served(), restoring=SimpleNamespace(problems=["a kept file cannot be read"])
    )

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        events = [messages.Event(one[0], 1000.0 + one[0], one[1], one[2]) for one in _LOG]
        event_log: Any = SimpleNamespace(
            all=lambda: events, about=lambda name: [one for one in events if one.model == name]
        )

        nothing: Any = SimpleNamespace(queues=_no_queues)
        daemon: Any = self
        self.explainer = Explainer(event_log, daemon.registry, daemon, nothing, nothing)

    def find_model(self, name: str) -> messages.ModelInfo | None:
        states = {"m": "ready", "n": "ready", "quiet": "ready", "begins": "starting"}
        return messages.ModelInfo(name, 1, states[name], []) if name in states else None

    def events(self, **asked: Any) -> list[int]:
        reported = self.explainer.events(messages.GetEvents(**asked))
        return [event.serial for event in self.loop.run(reported).events]


@pytest.fixture
def daemon(loop: VirtualLoop) -> Daemon:
    return Daemon(loop)


@pytest.mark.parametrize(
    ("asked", "serials"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"model": "m"}, [2, 3, 5]),
        ({"model": ""}, [1]),  # of the daemon itself
        ({"kinds": ["crashed"]}, [3, 5]),
        ({"kinds": ["crashed", "started"], "model": "m"}, [3, 5]),
        ({"kinds": ["suspended"]}, []),
        ({"after": 3}, [4, 5]),
        ({"after": 5}, []),
        ({"since": 1004.0}, [4, 5]),
        ({"since": float("nan")}, []),
        ({"limit": 2}, [4, 5]),  # the newest
        ({"limit": 2, "model": "m"}, [3, 5]),
        ({"limit": 0}, []),
        ({"limit": -1}, []),
        ({"limit": 10**9}, [1, 2, 3, 4, 5]),
        ({"model": "quiet"}, []),
        ({"model": "begins"}, []),
    ],
)
def test_selected_events_are_returned(
    daemon: Daemon, asked: dict[str, Any], serials: list[int]
) -> None:
    assert daemon.events(**asked) == serials


def test_events_for_slow_readers_are_limited(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanations, "MAX_EVENTS", 2)
    assert daemon.events(limit=100) == [4, 5]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"model": "nope"}, "no model 'nope' is registered"),
        (
            {"kinds": ["crashed", "exploded", "boom"]},
            "unknown event kind boom, exploded; known kinds",
        ),
    ],
)
def test_an_unknown_name_is_an_error(daemon: Daemon, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(RemoteFailure, match=why):
        daemon.events(**asked)


def test_an_unknown_model_is_not_explained(daemon: Daemon) -> None:
    asked = messages.Explain("nope")
    with pytest.raises(RemoteFailure, match="no model 'nope'"):
        daemon.loop.run(daemon.explainer.explain(asked))


async def _no_queues() -> dict[str, Any]:
    return {}
