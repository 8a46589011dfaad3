"""A frontend with small limits and a socket that accepts descriptors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.frontend.process import Built, OpenAIProcess, running
from support.frontend.relayed_stream import Stream, descriptors
from support.real_daemon import eventually


@pytest.fixture(scope="module")
def frontend(made: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIProcess]:
    limits = {"unsent_bytes": 1 << 16, "unsent_s": 5}
    folder = tmp_path_factory.mktemp("relay")
    with running(made, limits, private=folder / "own.sock") as frontend:
        before = descriptors(frontend.process.pid)
        yield frontend
        eventually(
            lambda: descriptors(frontend.process.pid) <= before, "all descriptors are closed"
        )


@pytest.fixture
def patient_frontend(made: Built, tmp_path: Path) -> Iterator[OpenAIProcess]:
    """One that waits for clients that do not read."""
    with running(made, {"unsent_s": 1e6}, private=tmp_path / "own.sock") as frontend:
        yield frontend


@pytest.fixture
def begin(frontend: OpenAIProcess, tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    with ExitStack() as stack:

        def make(**options: Any) -> Stream:
            stream = Stream(options.pop("frontend", frontend), tmp_path, **options)
            stack.callback(stream.close)
            return stream

        yield make
