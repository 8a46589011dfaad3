"""Waiting actively for a worker's answer (spin.c): no message and no end is missed, and failures cost no more than successes earned."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytriton._protocol import linux

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        linux.usable_cpus() < 2, reason="with one processor, nothing waits actively"
    ),
]


def test_an_active_wait_ends_as_a_sleeping_one_does(spin_program: Path) -> None:
    said = subprocess.run([spin_program], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said.splitlines() == [
        "always there: next wait expected to be short, most earned",
        "there: received",
        "nothing: EAGAIN",
        "next wait not expected to be short, in debt",
        "waits until it may poll again: 11",
        "from another thread: 1",
        "the peer has closed: closed",
        "the peer has not read: ECONNRESET",
    ]
