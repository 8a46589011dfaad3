"""Fixtures of the tests that compare the native frontend with NVIDIA's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.frontend.frontend_pair import Frontend, both_frontends


@pytest.fixture(scope="module")
def frontends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Frontend, Frontend]]:
    """NVIDIA's frontend and the native one, with the same models."""
    with both_frontends(tmp_path_factory.mktemp("frontends")) as both:
        yield both
