"""Fixtures of the Python proxy's tests: Triton's stub in its original state before each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fakes.proxy_harness import Proxy, ProxyHarness
from fakes.triton import fake_stub

from pytriton._protocol.messages import Verdict


@pytest.fixture(autouse=True)
def _stub_as_it_was() -> Iterator[None]:
    fake_stub.restore()
    yield
    fake_stub.restore()


@pytest.fixture
def harness() -> Iterator[ProxyHarness]:
    made = ProxyHarness()
    yield made
    made.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Proxy]]:
    """Creates proxies of decoupled models."""
    made: list[Proxy] = []

    def proxy(*verdicts: Verdict, **more: Any) -> Proxy:
        made.append(Proxy(*verdicts, **more))
        return made[-1]

    yield proxy
    for one in made:
        one.close()
