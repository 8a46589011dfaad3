"""The processes that have started a process."""

from __future__ import annotations

import os

import psutil
import pytest

from pytriton._host.ancestors import ancestors


def test_they_are_those_that_psutil_finds() -> None:
    expected = [parent.pid for parent in psutil.Process().parents()]
    assert expected[0] == os.getppid()
    assert ancestors(os.getpid()) == expected


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1, 2**70])
def test_a_process_that_is_not_there_has_none(pid: int) -> None:
    assert ancestors(pid) == []
