"""The ancestors of a process."""

from __future__ import annotations

import os

import psutil
import pytest

from pytriton._host.ancestors import ancestors


def test_ancestors_match_psutils() -> None:
    expected = [parent.pid for parent in psutil.Process().parents()]
    assert expected[0] == os.getppid()
    assert ancestors(os.getpid()) == expected


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1, 2**70])
def test_a_missing_process_has_no_ancestors(pid: int) -> None:
    assert ancestors(pid) == []
