"""What tests of the Python proxy share: Triton's stub as it was, before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fakes import fake_stub
from support.fakes.proxy_stage import Stage


@pytest.fixture(autouse=True)
def _stub_as_it_was() -> Iterator[None]:
    fake_stub.restore()
    yield
    fake_stub.restore()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()
