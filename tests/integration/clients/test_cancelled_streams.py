"""Cancel gRPC streams with fast answers, which crashes an unprotected tritonserver."""

from __future__ import annotations

from argparse import Namespace

import pytest
from demos import cancel_demo


@pytest.mark.timeout(300)
def test_tritonserver_survives_cancelled_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_PERTURB_", "165")  # crash on use after free
    options = Namespace(seconds=7.0, answers=300, pause_ms=0.0, seed=1)
    counts = cancel_demo.serve("compiled", options)
    assert counts.cancelled > 10
    assert counts.crashed == 0
