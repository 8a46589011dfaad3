"""The folder of shared entries: it keeps nothing of dead processes, and removes nothing that is in use."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pytriton
from pytriton._protocol.files import shared_entries

_AT_ONCE = fcntl.LOCK_EX | fcntl.LOCK_NB


def memories() -> set[str]:
    """Return the shared memory for which this process has descriptors."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of the listing
            continue
        if "pytriton-shared-" in target:
            found.add(f"{name} {target}")
    return found


def test_partial_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    for pid in (ended.pid, os.getpid()):
        (tmp_path / f"abc.{pid}").touch()
    (tmp_path / "abc.lock").touch()
    assert shared_entries.all_of(tmp_path) == {}
    assert [one.name for one in tmp_path.iterdir()] == [f"abc.{os.getpid()}"]


def test_a_held_lock_stays(tmp_path: Path) -> None:
    with shared_entries.locked(tmp_path, "abc"):
        assert shared_entries.all_of(tmp_path) == {}
        assert (tmp_path / "abc.lock").exists()
    assert shared_entries.all_of(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_was_removed_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "abc.lock"
    flock = fcntl.flock

    def removed_first(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    locked = shared_entries.locked(tmp_path, "abc")
    with locked, path.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, _AT_ONCE)


def test_a_failed_write_leaves_nothing(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = memories()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        with pytest.raises(OSError, match="No space left"):
            pytriton.shared(lambda: np.zeros(4), key="k")
    assert memories() == before
    assert [one.suffix for one in own_folder.iterdir()] == [".lock"]
    assert pytriton.shared(lambda: np.ones(4), key="k").tolist() == [1.0] * 4
    assert memories() > before
