"""A daemon without processes, on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fakes.brain import Brain


@pytest.fixture
def brain(tmp_path: Path) -> Iterator[Brain]:
    """One whose tritonserver is up; when the test is over it is stopped, and no worker may be left."""
    one = Brain(tmp_path)
    one.advance(2.0)
    yield one
    one.close()
