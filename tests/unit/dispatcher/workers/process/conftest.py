"""What workers' fork servers find in their environment."""

from __future__ import annotations

from pathlib import Path

import pytest

#: What the probe of tests/support/forks/fork_harness.py asks of numpy.
_NUMPY = """
class ones:
    def __init__(self, shape): pass
    def __matmul__(self, other): return self
    def sum(self): return 0.0
class random:
    rand = staticmethod(lambda: 0.0)
"""


@pytest.fixture
def little_numpy(tmp_path: Path) -> None:
    """Have fork servers import a numpy that has next to nothing: the real one is two thirds of their start."""
    path = tmp_path / "path"
    path.mkdir()
    (path / "numpy.py").write_text(_NUMPY)
