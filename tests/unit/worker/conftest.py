"""Fixtures of the workers' tests: a dispatcher, and output buffers served to clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from fakes.fake_dispatcher import FakeDispatcher
from support.output_client import Serve, serving


@pytest.fixture
def dispatcher() -> Iterator[FakeDispatcher]:
    with closing(FakeDispatcher()) as made:
        yield made


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    with serving(monkeypatch) as load:
        yield load
