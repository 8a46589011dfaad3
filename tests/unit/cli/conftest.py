"""The command line, imported once for all tests that run its commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.forking import Forking


@pytest.fixture(scope="session")
def commands() -> Iterator[Forking]:
    """Runs commands; typer imports the last of these when it is there."""
    forking = Forking("pytriton.cli.app", "pytriton.cli.link", "pydantic.type_adapter")
    yield forking
    forking.close()
