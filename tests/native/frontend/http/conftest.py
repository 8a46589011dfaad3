"""The whole frontend with a core that behaves as its models' names say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.frontend.process import Built, OpenAIProcess, running

_LIMITS = {
    "header_bytes": 2048,
    "headers": 20,
    "body_bytes": 1 << 20,
    "json_depth": 8,
    "idle_s": 60,
    "inputs": 8,
}


@pytest.fixture(scope="module")
def frontend(made: Built) -> Iterator[OpenAIProcess]:
    """A running frontend with small limits."""
    with running(made, _LIMITS) as frontend:
        yield frontend


@pytest.fixture(scope="module")
def hasty_frontend(made: Built) -> Iterator[OpenAIProcess]:
    """A running frontend that waits at most a second for a request."""
    with running(made, {**_LIMITS, "header_s": 1, "body_s": 1}) as frontend:
        yield frontend
