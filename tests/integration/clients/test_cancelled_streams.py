"""Clients that cancel streams whose answers come as fast as they can: what ends in that moment crashes tritonserver."""

from __future__ import annotations

from argparse import Namespace

import pytest
from demos import cancel_demo


@pytest.mark.timeout(300)
def test_tritonserver_survives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_PERTURB_", "165")  # what is used after it was freed is noticed
    options = Namespace(seconds=7.0, answers=300, pause_ms=0.0, seed=1)
    tally = cancel_demo.serve("compiled", options)
    assert tally.cancelled > 10
    assert tally.crashed == 0
