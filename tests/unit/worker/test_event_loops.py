"""The event loop of asynchronous callables: uvloop's where the environment has it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pytriton.worker.event_loops import new_event_loop


def made() -> str:
    """Return the package that a new loop is of."""
    loop = new_event_loop()
    loop.close()
    return type(loop).__module__.partition(".")[0]


def test_it_is_uvloops_where_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvloop")
    assert made() == "uvloop"
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert made() == "asyncio"


def test_it_is_asyncios_where_that_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """nest_asyncio refuses every other loop."""
    monkeypatch.setitem(sys.modules, "nest_asyncio", ModuleType("nest_asyncio"))
    assert made() == "asyncio"
