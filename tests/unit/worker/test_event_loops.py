"""The event loop of asynchronous callables: uvloop's if it is installed."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pytriton.worker.event_loops import new_event_loop


def made() -> str:
    """Return the package of a new loop."""
    loop = new_event_loop()
    loop.close()
    return type(loop).__module__.partition(".")[0]


def test_uvloop_is_used_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvloop")
    assert made() == "uvloop"
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert made() == "asyncio"


def test_asyncio_is_used_if_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """nest_asyncio refuses every other loop."""
    monkeypatch.setitem(sys.modules, "nest_asyncio", ModuleType("nest_asyncio"))
    assert made() == "asyncio"
