"""The whole front over a core that answers as models' names say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.front.process import Built, FrontProcess, running


@pytest.fixture(scope="module")
def front(made: Built) -> Iterator[FrontProcess]:
    """It runs, with small limits and short times."""
    limits = {
        "header_bytes": 2048, "headers": 20, "body_bytes": 1 << 20, "json_depth": 8, "header_s": 1, "body_s": 1,
        "idle_s": 60, "inputs": 8,
    }  # fmt: skip
    with running(made, limits) as front:
        yield front
