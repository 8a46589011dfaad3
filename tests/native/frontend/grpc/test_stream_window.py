"""The window of a stream with the maximum of requests in flight: closed, and reopened."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.frontend.c_programs import built


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(
        Path(__file__).with_name("stream_window.c"),
        ["grpc/infer_stream.c", "memory/*.c", "base/*.c", "net/limits.c"],
        tmp_path_factory.mktemp("holding"),
    )


@pytest.mark.parametrize(
    ("answered_first", "window"),
    [(0, "held, open"), (255, "held, open"), (256, "open, open"), (511, "open, open")],
)
def test_a_window_that_closes_during_responses_is_reopened(
    program: Path, answered_first: int, window: str
) -> None:
    """Responses arrive between the decision to close it and its closing; it reopens after half of the requests."""
    done = subprocess.run(
        [program, str(answered_first)], check=True, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout == f"{window}\n"
