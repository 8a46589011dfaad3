"""A Triton Python model's `is_ready`, as it is waited for while the model loads."""

from __future__ import annotations

import time

import pytest

from pytriton.worker.callables import LoadError
from pytriton.worker.python_model.readiness import wait_ready


def test_what_came_before_counts_as_loading() -> None:
    """Else the dispatcher, which counts it, gives up first, and nobody learns the model's own reason."""
    asked = []

    def is_ready() -> bool:
        asked.append(True)
        return False

    with pytest.raises(LoadError, match=r"is_ready\(\) returned False.*load_timeout_s=6"):
        wait_ready("model", is_ready, 6.0, begun=time.monotonic() - 5.5)
    assert len(asked) == 1


def test_it_is_asked_until_it_is_ready() -> None:
    answers = iter([False, True])
    wait_ready("model", lambda: next(answers), 100.0, begun=time.monotonic())
    assert list(answers) == []
