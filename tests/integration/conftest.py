"""Fixtures of the tests with a real tritonserver."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.models.calling_models import Ask, Serve, serving
from support.models.inference import Inference
from support.real_daemon import FRONT, RunningDaemon

from pytriton._host.settings.declarations import ENV_PREFIX

# Scripts and commands start daemons of their own.
if FRONT != "native":  # which is the default
    os.environ[f"{ENV_PREFIX}FRONTEND"] = FRONT


@pytest.fixture
def inference(daemon: RunningDaemon) -> Iterator[Inference]:
    """A gRPC client of the module's daemon."""
    connection = Inference("grpc", daemon.grpc)
    yield connection
    connection.close()


# Of the modules about calls between models; others have a `serve` of their own.


@pytest.fixture
def serve(daemon: RunningDaemon) -> Serve:
    """Return a function that registers a model, which is served until the daemon ends."""
    return serving(daemon)


@pytest.fixture
def ask(daemon: RunningDaemon) -> Iterator[Ask]:
    """Return a function that sends a request to a model over HTTP."""
    client = Inference("http", daemon.http)
    yield client.infer
    client.close()
