"""Fixtures of the tests with workers of a real daemon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.misbehaving_model import Serve, serving
from support.real_daemon import RunningDaemon


@pytest.fixture
def serve(daemon: RunningDaemon) -> Iterator[Serve]:
    """Return a function that registers a callable for one test, by default as "model"."""
    with serving(daemon) as register:
        yield register
