"""Waiting actively for a worker's answer (spin.c): no message and no end is missed, and failures make it wait in sleep."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytriton._protocol import linux

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(linux.usable_cpus() < 2, reason="with one processor, nothing waits actively"),
]


def test_an_active_wait_ends_as_a_sleeping_one_does(spin_program: Path) -> None:
    said = subprocess.run([spin_program], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said.splitlines() == [
        "already there: received, pause 0, then 32",
        "in a pause: received, pause 15, then 64",
        "nothing: EAGAIN, pause 16, then 32",
        "next wait not expected to be short",
        "nothing again and again: EAGAIN, pause 4096, then 4096",
        "from another thread: 1",
        "the peer has closed: closed, pause 0, then 0",
        "the peer has not read: ECONNRESET, pause 0, then 0",
    ]
