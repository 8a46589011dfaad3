"""The program that makes calls."""

from __future__ import annotations

import pytest
from support.frontend.calls import ADDRESSES, Run, program


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A program that makes the calls described by its arguments."""
    return program("calls", tmp_path_factory.mktemp("calls"), ADDRESSES)
