"""A daemon that belongs to another process notices that process's exit, and leaves no folder behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton._protocol.exit_codes import ExitCode
from pytriton.dispatcher.runtime.owner import OwnerError, owner_of

#: A daemon; its folders and its reaction to its owner's exit are arguments.
_DAEMON = """
import asyncio, os, sys, threading
from pathlib import Path
from pytriton.dispatcher.runtime.owner import Owner

how, workspace, runtime_dir, *owners = sys.argv[1:]
owner = Owner(*(int(pid) for pid in owners or [os.getppid()]))
Path(runtime_dir).mkdir()
owner.adopt(Path(workspace) if workspace else None, Path(runtime_dir))
if how == "interrupted":
    try:
        print("up", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        owner.exit_now()

async def serve():
    ended = asyncio.Event()
    stuck = how == "stuck"
    act = (lambda one: None) if stuck else (lambda one: (print("ended", one.pid, flush=True), ended.set()))
    owner.on_exit(act, asyncio.get_running_loop(), -15.0 if stuck else 100.0)
    print("up", flush=True)
    await ended.wait()
    owner.remove_folders()

asyncio.run(serve())
"""
#: Starts that daemon, prints its own pid and the daemon's, and lives until it is killed.
_OWNER = """
import os, signal, subprocess, sys
daemon = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
print(os.getpid(), daemon.pid, flush=True)
signal.pause()
"""


class Family:
    """An owner process and its daemon."""

    def __init__(self, folder: Path, how: str, workspace: bool = True) -> None:
        self.runtime_dir, self.workspace = folder / "run", folder / "deep" / "workspace"
        arguments = [_DAEMON, how, str(self.workspace) if workspace else "", str(self.runtime_dir)]
        self.owner = subprocess.Popen(
            [sys.executable, "-c", _OWNER, *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        lines = {self.line(), self.line()}  # in whatever order
        assert "up" in lines
        pids = next(line for line in lines if line != "up")
        self.daemon = int(pids.split()[1])

    def line(self) -> str:
        """Return the next line printed by either; "" after both have exited."""
        assert self.owner.stdout is not None
        return self.owner.stdout.readline().strip()


@pytest.fixture
def families() -> Iterator[list[Family]]:
    made: list[Family] = []
    yield made
    for one in made:
        one.owner.kill()
        one.owner.communicate()  # returns when the daemon has exited, too, because it holds the pipe


def test_a_daemon_reacts_to_its_owners_exit_and_leaves_no_folder(
    tmp_path: Path, families: list[Family]
) -> None:
    family = Family(tmp_path, "serves")
    families.append(family)
    assert os.readlink(family.workspace / "run") == str(family.runtime_dir)
    assert family.workspace.stat().st_mode & 0o777 == 0o700
    family.owner.kill()
    assert family.line() == f"ended {family.owner.pid}"
    assert family.line() == ""
    assert list((tmp_path / "deep").iterdir()) == []
    assert not family.runtime_dir.exists()


def test_a_starting_daemon_is_interrupted(tmp_path: Path, families: list[Family]) -> None:
    family = Family(tmp_path, "interrupted", workspace=False)
    families.append(family)
    family.owner.kill()
    assert family.line() == "interrupted"
    assert family.line() == ""
    assert list(tmp_path.iterdir()) == []


def test_a_daemon_that_does_not_stop_in_time_exits(tmp_path: Path, families: list[Family]) -> None:
    family = Family(tmp_path, "stuck")
    families.append(family)
    family.owner.kill()
    assert family.line() == ""
    assert not family.workspace.exists()
    assert not family.runtime_dir.exists()


def failed(workspace: str, folder: Path, *owners: str) -> subprocess.CompletedProcess[str]:
    """Run a daemon that does not start."""
    return subprocess.run(
        [sys.executable, "-c", _DAEMON, "serves", workspace, str(folder / "run"), *owners],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_only_an_ancestor_can_be_the_owner(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        done = failed("", tmp_path, str(stranger.pid))
        stranger.kill()
    assert done.returncode == ExitCode.INTERRUPTED
    assert (
        f"process {stranger.pid}, the owner of this daemon, has exited or is not its ancestor"
        in done.stderr
    )
    assert not (tmp_path / "run").exists()


def test_an_existing_workspace_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "workspace" / "theirs").mkdir(parents=True)
    done = failed(str(tmp_path / "workspace"), tmp_path)
    assert done.returncode == 1
    assert "FileExistsError" in done.stderr
    assert (tmp_path / "workspace" / "theirs").is_dir()


@pytest.mark.parametrize("value", ["me", "-1", "0", "12 ", "1.5", "१२x"])
def test_an_owner_variable_without_a_running_process_is_reported(value: str) -> None:
    with pytest.raises(OwnerError, match=r"PYTRITON_DAEMON_OWNER: .* is not a process id"):
        owner_of(None, {"PYTRITON_DAEMON_OWNER": value})


def test_a_daemon_without_an_owner() -> None:
    assert owner_of(None, {}) is None
    assert owner_of(None, {"PYTRITON_DAEMON_OWNER": ""}) is None


def test_a_daemon_stops_with_the_first_owner_that_exits() -> None:
    """Here that is the one in the environment, rather than the script that it is private to."""
    program = f"""
import os, threading
from pytriton.dispatcher.runtime.owner import owner_of
parent = os.getppid()
owner = owner_of({os.getpid()}, {{"PYTRITON_DAEMON_OWNER": str(parent)}})
try:
    print(owner.pid == parent, flush=True)
    threading.Event().wait()
except KeyboardInterrupt:
    print(owner.pid == parent, flush=True)
"""
    between = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", between, program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "False\n"
    process.kill()
    assert process.stdout.readline() == "True\n"
    process.communicate()
