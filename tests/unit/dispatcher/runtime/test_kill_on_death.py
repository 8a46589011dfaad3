"""The helper that kills what the daemon started once the daemon is dead, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from support.real_daemon import eventually

from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath


def _group() -> subprocess.Popen[bytes]:
    """A process group whose leader exits before its other process."""
    return subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & wait"], start_new_session=True)


def test_process_lists_show_one_short_line(tmp_path: Path) -> None:
    """`systemctl status` shows all arguments."""
    kill_on_death = KillOnDeath(tmp_path / "mine-")
    try:
        assert len(" ".join(psutil.Process(kill_on_death.pid).cmdline())) < 200
    finally:
        kill_on_death.close()


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_child_processes_are_killed_with_the_daemon(tmp_path: Path, number: int | None) -> None:
    """Even if a group's leader has already exited."""
    regions = [tmp_path / "mine-1", tmp_path / "mine-2", tmp_path / "other"]
    for region in regions:
        region.touch()
    kill_on_death = KillOnDeath(tmp_path / "mine-")
    ended, given_back = _group(), _group()
    try:
        family = eventually(psutil.Process(ended.pid).children, "the shell has started its own")
        if number is not None:
            os.kill(ended.pid, number)
            ended.wait()
        for group in (ended, given_back):
            kill_on_death.add(group.pid)
        kill_on_death.remove(given_back.pid)
        kill_on_death.close()  # as the end of this process would
        _, alive = psutil.wait_procs(family, timeout=30)
        assert not alive
        assert given_back.poll() is None
        assert [region.exists() for region in regions] == [False, False, True]
    finally:
        os.killpg(given_back.pid, signal.SIGKILL)
        given_back.wait()
        ended.wait()


@pytest.mark.parametrize("adopted", [False, True])
def test_a_killed_helper_does_not_prevent_the_exit(tmp_path: Path, adopted: bool) -> None:
    first = KillOnDeath(tmp_path / "mine-")
    kill_on_death = KillOnDeath.adopt(first.pid, os.dup(first.pipe)) if adopted else first
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: psutil.Process(first.pid).status() == psutil.STATUS_ZOMBIE, "it has ended")
    kill_on_death.add(1 << 22)
    kill_on_death.close()
    first.close()
    assert not psutil.pid_exists(first.pid)


def test_processes_that_left_their_group_are_killed_too(tmp_path: Path) -> None:
    """They inherited the variable from parents that have exited; other processes survive."""
    kill_on_death, another = KillOnDeath(tmp_path / "mine-"), KillOnDeath(tmp_path / "others-")
    script = "setsid sleep 1000 >/dev/null & echo $!"
    try:
        found = []
        for guard in (kill_on_death, another):
            parent = subprocess.run(
                ["/bin/sh", "-c", script],
                env=guard.mark({"PATH": os.environ["PATH"]}), start_new_session=True,
                stdout=subprocess.PIPE, check=True,
            )  # fmt: skip
            found.append(psutil.Process(int(parent.stdout)))
        kill_on_death.close()
        _, alive = psutil.wait_procs(found[:1], timeout=30)
        assert not alive
        assert found[1].is_running()
    finally:
        another.close()
    psutil.wait_procs(found, timeout=30)
    assert not any(one.is_running() for one in found)
