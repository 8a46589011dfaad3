"""Clients that wait for a server or model only until its first answer, however long that takes."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from pytriton.client._transport import servers
from pytriton.client._transport.steps import Pause


def wait_for_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """End a client's wait as soon as it would pause between two polls.

    Tests can then use a limit of a minute: they take only as long as the answer, and pass on slow machines.
    """
    passed_s = 0.0

    def pause(seconds: float) -> Pause:
        nonlocal passed_s
        passed_s += 1e6
        return Pause(0.0)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr(servers, "Pause", pause)
    monkeypatch.setattr(servers, "time", clock)
