"""Fixtures of the tests that ask tritonserver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.inference import Inference
from support.running import RunningDaemon


@pytest.fixture
def inference(daemon: RunningDaemon) -> Iterator[Inference]:
    """A gRPC client of the module's daemon."""
    connection = Inference("grpc", daemon.grpc)
    yield connection
    connection.close()
