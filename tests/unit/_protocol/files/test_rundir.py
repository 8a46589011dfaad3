"""The runtime directory: where it is, who owns it, and whether a daemon holds it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytriton._protocol.files import rundir as rundir_module
from pytriton._protocol.files.rundir import (
    ENV_RUNTIME_DIR,
    MAX_SOCKET_PATH,
    RuntimeDir,
    RuntimeDirError,
    clients_runtime_dir,
    default_runtime_dir,
)

OF_NOBODY = 65534


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (ENV_RUNTIME_DIR, "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_environment_variable_comes_first(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clean_environment.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    clean_environment.setenv(ENV_RUNTIME_DIR, "/some/where")
    assert default_runtime_dir() == Path("/some/where")
    clean_environment.setenv("HOME", "/home/me")
    clean_environment.setenv(ENV_RUNTIME_DIR, "~/run")
    assert default_runtime_dir() == Path("/home/me/run")
    clean_environment.chdir(tmp_path)
    clean_environment.setenv(ENV_RUNTIME_DIR, "run")
    assert default_runtime_dir() == tmp_path / "run"


def test_the_sessions_directory_comes_second(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clean_environment.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_runtime_dir() == tmp_path / "pytriton-daemon"
    clean_environment.setenv(ENV_RUNTIME_DIR, "")  # empty is as good as unset
    assert default_runtime_dir() == tmp_path / "pytriton-daemon"


def test_a_missing_session_directory_is_skipped(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clean_environment.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert tmp_path not in default_runtime_dir().parents


def test_the_users_directory_comes_last(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clean_environment.setattr(tempfile, "tempdir", str(tmp_path))
    clean_environment.setattr(os, "geteuid", lambda: 0)
    assert default_runtime_dir() == Path("/run/pytriton-daemon")
    clean_environment.setattr(os, "geteuid", lambda: 1234)
    assert default_runtime_dir() == tmp_path / "pytriton-daemon-1234"


def test_clients_find_the_system_service_by_default(
    clean_environment: pytest.MonkeyPatch, short_dir: Path
) -> None:
    """Unless a daemon runs in this user's own directory: a login shell of the service's user has its own session."""
    service = RuntimeDir(short_dir / "service")
    session = RuntimeDir(short_dir / "session" / "pytriton-daemon")
    for rundir in (service, session):
        rundir.create()
    clean_environment.setattr(rundir_module, "_SERVICE_DIR", service.path)
    clean_environment.setenv("XDG_RUNTIME_DIR", str(session.path.parent))
    assert clients_runtime_dir() == session.path
    with running(service):
        assert clients_runtime_dir() == service.path
        assert default_runtime_dir() == session.path  # of a daemon that this user starts
        with running(session):
            assert clients_runtime_dir() == session.path
        clean_environment.setenv(ENV_RUNTIME_DIR, str(session.path))
        assert clients_runtime_dir() == session.path


@contextmanager
def running(rundir: RuntimeDir) -> Iterator[None]:
    """Hold a directory as a daemon does."""
    with open(rundir.lock_file, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        yield


def test_the_location_does_not_require_a_writable_folder(
    clean_environment: pytest.MonkeyPatch,
) -> None:
    """In a service with ProtectSystem=strict, the error comes when something is written."""

    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    clean_environment.setattr(tempfile, "gettempdir", none)
    clean_environment.setattr(os, "geteuid", lambda: 1234)
    assert default_runtime_dir() == Path("/tmp/pytriton-daemon-1234")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's links are followed")
def test_systemds_link_for_a_dynamic_user_is_followed(short_dir: Path) -> None:
    """But no other link: /run/NAME leads to /run/private/NAME."""
    (short_dir / "private" / "r").mkdir(parents=True, mode=0o755)
    (short_dir / "r").symlink_to("private/r")
    rundir = RuntimeDir(short_dir / "r")
    rundir.create()
    assert mode(short_dir / "private" / "r") == 0o700
    assert rundir.lanes.is_dir()
    (short_dir / "other").symlink_to("private/r")
    with pytest.raises(RuntimeDirError, match="is not a directory"):
        RuntimeDir(short_dir / "other").create()


def test_created_folders_are_private(short_dir: Path) -> None:
    rundir = RuntimeDir(short_dir / "new" / "r")
    for _ in range(2):  # the second finds it made
        rundir.create()
        for folder in (rundir.path, rundir.lanes, rundir.models, rundir.backends, rundir.logs):
            assert folder.is_dir()
            assert mode(folder) == 0o700


@pytest.mark.parametrize("given", [0o755, 0o777, 0o750, 0o701])
def test_an_open_directory_is_made_private(short_dir: Path, given: int) -> None:
    short_dir.chmod(given)
    RuntimeDir(short_dir).create()
    assert mode(short_dir) == 0o700


@pytest.mark.parametrize("given", [0o777, 0o775, 0o1777])
def test_a_directory_writable_by_others_is_used_only_if_empty(short_dir: Path, given: int) -> None:
    """Such as a volume, or /tmp: files there may be somebody else's, and would be executed."""
    (short_dir / "lib").mkdir()
    (short_dir / "lib" / "numpy.py").write_text("raise SystemExit('theirs')")
    short_dir.chmod(given)
    with pytest.raises(
        RuntimeDirError, match=rf"other users.*--runtime-dir {short_dir}/pytriton-daemon"
    ):
        RuntimeDir(short_dir).create()
    assert mode(short_dir) == given  # it stays as it was
    inside = RuntimeDir(short_dir / "pytriton-daemon")
    inside.create()
    assert mode(inside.path) == 0o700
    assert inside.movable_at() == (None if given != 0o777 else short_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["daemon.lock", "logs/model-m.log", "state/models/m.registration"])
def test_directories_with_files_of_other_users_are_refused(short_dir: Path, name: str) -> None:
    rundir = RuntimeDir(short_dir)
    rundir.create()
    planted = short_dir / name
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.touch()
    os.chown(planted, OF_NOBODY, OF_NOBODY)
    with pytest.raises(RuntimeDirError, match=rf"holds {name}, which belongs to user {OF_NOBODY}"):
        rundir.create()


@pytest.mark.parametrize("name", ["daemon.lock", "start.json", "logs/daemon.log", "logs"])
def test_a_link_in_place_of_a_file_is_refused(short_dir: Path, name: str) -> None:
    rundir = RuntimeDir(short_dir / "r")
    rundir.create()
    target = short_dir / "precious"
    target.write_text("mine")
    place = rundir.path / name
    if place.is_dir():
        place.rmdir()
    place.symlink_to(target)
    with pytest.raises(RuntimeDirError, match=rf"{name} is a link \(to {target}\).*Remove it"):
        rundir.create()
    assert target.read_text() == "mine"


def test_clearing_keeps_logs_and_follows_no_link(short_dir: Path) -> None:
    rundir = RuntimeDir(short_dir / "r")
    rundir.create()
    target = short_dir / "target"
    target.mkdir()
    (target / "file").touch()
    (rundir.models / "m").symlink_to(target)
    rundir.library.symlink_to(target)
    rundir.lane_socket("w1").touch()
    rundir.control_socket.touch()
    rundir.log_file().write_text("said\n")
    rundir.clear()
    assert (target / "file").exists()
    assert not rundir.library.is_symlink()
    assert not rundir.control_socket.exists()
    assert list(rundir.models.iterdir()) == list(rundir.lanes.iterdir()) == []
    assert rundir.log_file().read_text() == "said\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_clients_skip_another_users_directory_of_our_name(
    clean_environment: pytest.MonkeyPatch, short_dir: Path
) -> None:
    """In /tmp, anybody could create it, listen there, and receive callables."""
    clean_environment.setattr(tempfile, "tempdir", str(short_dir))
    rundir = RuntimeDir(short_dir / f"pytriton-daemon-{os.geteuid()}")
    rundir.create()
    with held(rundir) as holder:
        assert rundir.running_pid() == holder.pid
        os.chown(rundir.path, OF_NOBODY, OF_NOBODY)
        with pytest.raises(PermissionError, match=f"belongs to user {OF_NOBODY}"):
            rundir.running_pid()


def test_a_path_that_is_not_a_directory(short_dir: Path) -> None:
    file = short_dir / "file"
    file.write_text("mine")
    with pytest.raises(RuntimeDirError, match=rf"{file}.*Choose another one with --runtime-dir"):
        RuntimeDir(file).create()
    with pytest.raises(RuntimeDirError, match=rf"{file}/below.*Choose another one"):
        RuntimeDir(file / "below").create()
    assert file.read_text() == "mine"


def test_a_link_to_a_directory_is_refused(short_dir: Path) -> None:
    """A user who can change the link could redirect the daemon."""
    target = short_dir / "target"
    target.mkdir(0o755)
    (short_dir / "link").symlink_to(target)
    with pytest.raises(RuntimeDirError, match="link is not a directory"):
        RuntimeDir(short_dir / "link").create()
    assert mode(target) == 0o755
    assert list(target.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_refused(short_dir: Path) -> None:
    path = short_dir / "r"
    path.mkdir(0o700)
    os.chown(path, OF_NOBODY, OF_NOBODY)
    with pytest.raises(RuntimeDirError, match=rf"belongs to user {OF_NOBODY}.*--runtime-dir"):
        RuntimeDir(path).create()
    assert list(path.iterdir()) == []


def test_the_longest_possible_path_works(short_dir: Path) -> None:
    rest = MAX_SOCKET_PATH - len("/l/w99999999.sock")
    path = short_dir / ("x" * (rest - len(str(short_dir)) - 1))
    rundir = RuntimeDir(path)
    rundir.create()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(rundir.lane_socket("w99999999")))


@pytest.mark.parametrize("name", ["x", "é"])
def test_a_path_too_long_for_a_socket_is_refused_with_the_fix(short_dir: Path, name: str) -> None:
    rest = MAX_SOCKET_PATH - len("/l/w99999999.sock")
    path = short_dir / (name * (rest - len(str(short_dir))))
    excess = len(os.fsencode(path)) - rest
    mend = rf"{excess} bytes too long.*Choose a shorter one with --runtime-dir or {ENV_RUNTIME_DIR}"
    with pytest.raises(RuntimeDirError, match=mend):
        RuntimeDir(path).create()
    assert list(short_dir.iterdir()) == []


# ── who holds it ─────────────────────────────────────────────────────────────────────────────────

_HOLDER = """
import fcntl, os, sys
lock = open(sys.argv[1], "a+")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.truncate(0)
lock.write(sys.argv[2] if len(sys.argv) > 2 else str(os.getpid()))
lock.flush()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(rundir: RuntimeDir, *text: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock as a daemon does."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(rundir.lock_file), *text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield holder
        finally:
            holder.kill()


def test_without_a_lock_no_daemon_runs(short_dir: Path) -> None:
    assert RuntimeDir(short_dir).running_pid() is None
    assert RuntimeDir(short_dir / "gone").running_pid() is None


def test_a_daemon_runs_while_its_lock_is_held(short_dir: Path) -> None:
    rundir = RuntimeDir(short_dir)
    with held(rundir) as holder:
        assert rundir.running_pid() == holder.pid
        assert rundir.running_pid() == holder.pid  # the check did not take the lock
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert rundir.lock_file.read_text() == str(holder.pid)
        assert rundir.running_pid() is None


def test_a_pid_in_an_unlocked_file_is_stale(short_dir: Path) -> None:
    rundir = RuntimeDir(short_dir)
    rundir.lock_file.write_text(str(os.getpid()))  # a process that exists, but is no daemon
    assert rundir.running_pid() is None


@pytest.mark.parametrize("text", ["", "half a pi", "²"])
def test_a_held_lock_without_a_pid(short_dir: Path, text: str) -> None:
    rundir = RuntimeDir(short_dir)
    with held(rundir, text):
        assert rundir.running_pid() is None


def test_paths() -> None:
    rundir = RuntimeDir(Path("/run/d"))
    assert rundir.control_endpoint == "ipc:///run/d/control.sock"
    assert rundir.lane_socket("w1") == Path("/run/d/l/w1.sock")
    assert rundir.log_file() == Path("/run/d/logs/daemon.log")
    assert rundir.log_file("m") == Path("/run/d/logs/model-m.log")
