"""Fixtures of the workers' tests: an event loop on a virtual clock, and a small numpy for fork servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fakes.virtual_time import VirtualLoop
from support.models.descriptors import leaves_open
from support.real_daemon import eventually

from pytriton.dispatcher.workers import supervisor

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
def loop(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    """An event loop on a virtual clock, which also drives the supervisor's timestamps."""
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(time=loop.time))
    yield loop
    loop.settle()


@pytest.fixture
def little_numpy(tmp_path: Path) -> None:
    """Make fork servers import a nearly empty numpy: the real one takes two thirds of their start."""
    path = tmp_path / "path"
    path.mkdir()
    (path / "numpy.py").write_text(_NUMPY)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Check that a test leaves neither descriptors nor processes behind."""
    children = {*psutil.Process().children()}  # leftovers of earlier tests
    with leaves_open():
        yield
    eventually(
        lambda: {*psutil.Process().children()} <= children,
        lambda: f"all have ended: {psutil.Process().children()}",
    )
