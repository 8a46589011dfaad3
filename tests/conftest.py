"""Fixtures shared by all tests: a tritonserver in the cache, and running daemons."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# tests/ has no packages (import mode "importlib"), so what tests share is found by this.
sys.path.insert(0, str(Path(__file__).parent))

from support.running import RunningDaemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    """A real daemon with a real tritonserver, shared by the tests of one module; it must leave nothing behind."""
    with RunningDaemon.start() as running:
        yield running


@pytest.fixture
def fresh_daemon() -> Iterator[RunningDaemon]:
    """A real daemon for one test."""
    with RunningDaemon.start() as running:
        yield running
