"""The lock of the runtime directory, whose content names the running daemon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.run import _locked


@pytest.fixture
def rundir(tmp_path_factory: pytest.TempPathFactory) -> RuntimeDir:
    rundir = RuntimeDir(Path(tmp_path_factory.mktemp("d")) / "run")
    rundir.create()
    return rundir


def test_an_upgrade_does_not_rewrite_the_pid(rundir: RuntimeDir) -> None:
    """A client that reads an empty file takes the daemon for dead, and cancels its requests."""
    with _locked(rundir, None, None) as lock:
        assert rundir.running_pid() == os.getpid()
        handed = os.dup(lock)
        os.utime(rundir.lock_file, ns=(0, 0))
        with _locked(rundir, None, (handed, -1)):
            assert rundir.lock_file.stat().st_mtime_ns == 0
            assert rundir.running_pid() == os.getpid()


def test_the_socket_of_another_daemon_stays(rundir: RuntimeDir) -> None:
    """It created the directory again after this one's was deleted."""
    with _locked(rundir, None, None):
        rundir.lock_file.unlink()
        rundir.lock_file.touch()
        rundir.control_socket.touch()
    assert rundir.control_socket.exists()
    with _locked(rundir, None, None):
        rundir.control_socket.touch()
    assert not rundir.control_socket.exists()
