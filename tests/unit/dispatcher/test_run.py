"""The lock of the runtime directory, whose content names the running daemon, and what a daemon inherits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytriton._protocol.exit_codes import ExitCode
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


_IGNORES_SIGCHLD = """
import signal, subprocess
from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.run import run
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(run(DaemonConfig(runtime_dir="/dev/null/none")), subprocess.run("exit 3", shell=True).returncode)
"""


@pytest.mark.programs
def test_a_daemon_whose_parent_ignores_sigchld_can_wait_for_its_children() -> None:
    """Ignored signals are inherited. A worker that exits would seem to be alive forever."""
    daemon = subprocess.run(
        [sys.executable, "-c", _IGNORES_SIGCHLD], capture_output=True, text=True, check=True
    )
    assert daemon.stdout.split() == [str(int(ExitCode.USAGE)), "3"]
