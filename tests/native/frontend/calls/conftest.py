"""The program that makes calls."""

from __future__ import annotations

import pytest
from support.frontend.calls import ADDRESSES, Run, program


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What makes the calls that its arguments say."""
    return program("calls", tmp_path_factory.mktemp("calls"), ADDRESSES)
