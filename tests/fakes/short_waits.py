"""Clients that wait for a server or model no longer than for its first answer, however long that takes."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from pytriton.client._transport import servers
from pytriton.client._transport.steps import Pause


def wait_for_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the time that clients wait be over as soon as they would pause between two questions.

    With a limit of a minute a test takes no longer than the answer, and holds on a machine that is slow.
    """
    passed_s = 0.0

    def pause(seconds: float) -> Pause:
        nonlocal passed_s
        passed_s += 1e6
        return Pause(0.0)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr(servers, "Pause", pause)
    monkeypatch.setattr(servers, "time", clock)
