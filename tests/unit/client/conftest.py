"""Fake servers for the tests of the clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes.triton.fake_triton import FakeTriton, fake_triton


@pytest.fixture(params=["http", "grpc"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeTriton]:
    """A server for each protocol in turn, which serves the model "fake"."""
    with fake_triton(request.param) as running:
        yield running
