"""Waiting actively for a worker's answer (spin.c): no message and no end is missed, and failures cost no more than successes earned."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytriton._protocol.lanes.lane import ACTIVE_WAITS_VARIABLE


def _said(program: Path, environment: dict[str, str]) -> list[str]:
    done = subprocess.run([program], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


def test_an_active_wait_ends_as_a_sleeping_one_does(spin_program: Path) -> None:
    assert _said(spin_program, {ACTIVE_WAITS_VARIABLE: "1"}) == [
        "always there: next wait expected to be short, most earned",
        "there: received",
        "nothing: EAGAIN",
        "next wait not expected to be short, in debt",
        "waits until it may poll again: 11",
        "from another thread: 1",
        "the peer has closed: closed",
        "the peer has not read: ECONNRESET",
    ]


@pytest.mark.parametrize("environment", [{}, {ACTIVE_WAITS_VARIABLE: "0"}], ids=str)
def test_only_as_many_threads_wait_actively_as_the_daemon_allows(
    spin_program: Path, environment: dict[str, str]
) -> None:
    said = _said(spin_program, environment)
    assert "next wait not expected to be short, not in debt" in said
    assert "nothing: EAGAIN" in said
