"""Who may control the daemon: tested with real processes of other users."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from support.real_daemon import RunningDaemon
from support.users import NOBODY, needs_root, run_as, some_group

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.exit_codes import ExitCode
from pytriton.dispatcher import run as dispatcher

STATUS = "print(connect(folder, 60).status().pid)\n"
#: What a stranger would do who does not use our client.
RAW = """
from contextlib import closing
with closing(control.ControlClient(RuntimeDir(__import__("pathlib").Path(folder)).control_endpoint)) as client:
    try:
        print(client.ask(messages.Shutdown(), timeout_s=20))
    except errors.RemoteFailure as failure:
        print("refused:", failure.text)
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def modes_in(folder: Path) -> dict[str, int]:
    return {entry.name: mode(entry) for entry in folder.iterdir() if not entry.is_symlink()}


@needs_root
def test_file_modes_keep_other_users_out(daemon: RunningDaemon) -> None:
    folder = daemon.config.runtime_dir
    own = run_as(os.geteuid(), STATUS, folder)
    assert (own.returncode, own.stdout) == (0, f"{daemon.process.pid}\n"), own.stderr
    other = run_as(NOBODY, STATUS, folder)
    assert other.returncode != 0
    assert "DaemonNotRunningError: Cannot check whether a daemon is running" in other.stderr
    assert "Permission denied" in other.stderr


@needs_root
def test_another_user_is_refused_despite_open_file_modes(
    fresh_daemon: RunningDaemon,
) -> None:
    folder = Path(fresh_daemon.config.runtime_dir)
    folder.chmod(0o755)
    (folder / "control.sock").chmod(0o666)
    (folder / "daemon.lock").chmod(0o644)
    for _ in range(3):
        other = run_as(NOBODY, RAW, folder)
        assert other.stdout.startswith(f"refused: user {NOBODY} may not control"), other.stderr
        assert "set control_group" in other.stdout
    assert fresh_daemon.client.status().state == "ready"  # though the message was a shutdown
    reported = [line for line in fresh_daemon.said().splitlines() if "message refused" in line]
    assert len(reported) == 3  # one for each process, logged before it gets the answer
    assert all(f"user {NOBODY}, process " in line for line in reported)


@needs_root
def test_only_members_of_the_group_may_connect() -> None:
    group = some_group()
    with RunningDaemon.start(control_group=group.gr_name) as daemon:
        folder = Path(daemon.config.runtime_dir)
        member = run_as(NOBODY, STATUS, folder, [group.gr_gid])
        assert (member.returncode, member.stdout) == (0, f"{daemon.process.pid}\n"), member.stderr
        other = run_as(NOBODY, STATUS, folder)
        assert other.returncode != 0
        assert "Permission denied" in other.stderr
        assert (mode(folder), folder.stat().st_gid) == (0o750, group.gr_gid)
        modes = modes_in(folder)
        assert (modes.pop("control.sock"), modes.pop("daemon.lock")) == (0o660, 0o640)
        assert {"l", "models", "backends", "lib", "logs"} <= modes.keys()
        assert [name for name, found in modes.items() if found & 0o077] == []


def test_without_a_group_only_the_owner_has_access(daemon: RunningDaemon) -> None:
    folder = Path(daemon.config.runtime_dir)
    assert mode(folder) == 0o700
    assert [name for name, found in modes_in(folder).items() if found & 0o077] == []


def test_an_unknown_group_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = DaemonConfig(runtime_dir=str(tmp_path / "r"), control_group="no-such-group")
    assert dispatcher.run(config) == ExitCode.USAGE
    assert "group 'no-such-group' does not exist on this machine" in capfd.readouterr().err


@needs_root
def test_a_group_without_the_daemons_user_is_refused(tmp_path: Path) -> None:
    code = (
        "from pytriton._protocol.files.rundir import RuntimeDirError\n"
        "try:\n"
        f"    RuntimeDir(__import__('pathlib').Path(folder)).create({some_group().gr_name!r})\n"
        "except RuntimeDirError as error:\n"
        "    print(error)\n"
    )
    with tempfile.TemporaryDirectory(prefix="ptd-") as folder:
        os.chown(folder, NOBODY, NOBODY)
        done = run_as(NOBODY, code, folder)
        assert "must be a member of the group" in done.stdout, done.stderr
        assert mode(Path(folder)) == 0o700
