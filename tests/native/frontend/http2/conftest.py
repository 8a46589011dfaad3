"""The gRPC server without a core, under each sanitizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.frontend.c_programs import ADDRESSES, THREADS, built
from support.frontend.grpc.echo import GrpcEcho

Start = Callable[..., GrpcEcho]


@pytest.fixture(scope="session", params=[ADDRESSES, THREADS], ids=["address", "thread"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(
        Path(__file__).with_name("grpc_echo.c"),
        ["memory/*.c", "base/*.c", "thread_pool/*.c", "net/*.c", "http2/*.c"],
        tmp_path_factory.mktemp("grpc_echo"),
        sanitizers=request.param,
    )


@pytest.fixture
def start(program: Path) -> Iterator[Start]:
    """Return a function that starts servers; those that a test has not ended are killed."""
    with ExitStack() as stack:

        def make(*limits: str, kernel_keeps: int | None = None) -> GrpcEcho:
            server = GrpcEcho(program, *limits, kernel_keeps=kernel_keeps)
            stack.callback(server.kill)
            return server

        yield make
