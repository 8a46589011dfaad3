"""The access token: created if needed, kept private, and removed from command lines."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.files.rundir import RuntimeDir, RuntimeDirError
from pytriton.dispatcher.server import admin_token

TOKEN = "a-token-of-sixteen"


@pytest.fixture
def rundir(tmp_path: Path) -> RuntimeDir:
    return RuntimeDir(tmp_path)


@pytest.fixture
def shown() -> Iterator[subprocess.Popen[bytes]]:
    """A process with the token in its arguments, twice; it prints its own arguments on request."""
    program = "import sys; print('up', flush=True); input(); print(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, f"--one=a:key={TOKEN}", "--two", TOKEN, "last"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    with process:
        yield process


def test_a_token_is_created_only_if_needed() -> None:
    fresh = [admin_token.with_token(DaemonConfig()).access_token for _ in range(2)]
    assert None not in fresh
    assert fresh[0] != fresh[1]
    assert admin_token.with_token(DaemonConfig(restricted_endpoints=())).access_token is None
    given = DaemonConfig(access_token=TOKEN)
    assert admin_token.with_token(given) == given


def test_the_options_of_tritonserver() -> None:
    config = DaemonConfig(access_token=TOKEN, restricted_endpoints=("trace", "logging"))
    value = [f"trace,logging:triton-access-token={TOKEN}"]
    assert admin_token.restrictions(config) == {
        "http-restricted-api": value,
        "grpc-restricted-protocol": value,
    }
    over_http = DaemonConfig(access_token=TOKEN, allow_grpc=False)
    assert list(admin_token.restrictions(over_http)) == ["http-restricted-api"]
    assert admin_token.restrictions(DaemonConfig(access_token=TOKEN, restricted_endpoints=())) == {}


def test_the_token_file_is_private_from_the_start_and_removed(rundir: RuntimeDir) -> None:
    rundir.access_token_file.write_text("of a daemon that was killed")
    rundir.access_token_file.chmod(0o644)
    before = os.umask(0)
    try:
        with admin_token.published(DaemonConfig(access_token=TOKEN), rundir):
            assert stat.S_IMODE(rundir.access_token_file.stat().st_mode) == 0o600
            assert rundir.access_token() == TOKEN
    finally:
        os.umask(before)
    assert rundir.access_token() is None


def test_the_token_of_another_daemon_stays(rundir: RuntimeDir) -> None:
    """It created its directory after this one's was deleted."""
    with admin_token.published(DaemonConfig(access_token=TOKEN), rundir):
        rundir.access_token_file.write_text("of another daemon")
    assert rundir.access_token() == "of another daemon"


def test_a_stale_token_is_removed(rundir: RuntimeDir) -> None:
    rundir.access_token_file.write_text("of a daemon that was killed")
    with admin_token.published(DaemonConfig(restricted_endpoints=()), rundir):
        assert rundir.access_token() is None


def test_an_unwritable_file_is_reported(tmp_path: Path) -> None:
    rundir = RuntimeDir(tmp_path / "gone")
    with (
        pytest.raises(RuntimeDirError, match=r"cannot store the access token in .*/gone/access_"),
        admin_token.published(DaemonConfig(access_token=TOKEN), rundir),
    ):
        pass


def test_only_the_token_is_blanked_out(shown: subprocess.Popen[bytes]) -> None:
    cmdline = Path(f"/proc/{shown.pid}/cmdline")
    before = cmdline.read_bytes()
    assert before.count(TOKEN.encode()) == 2
    assert admin_token.blank_out(shown.pid, TOKEN)
    assert cmdline.read_bytes() == before.replace(TOKEN.encode(), b"*" * len(TOKEN))
    output, _ = shown.communicate(b"\n")
    assert output.decode().split() == [f"--one=a:key={TOKEN}", "--two", TOKEN, "last"]


def test_a_failure_to_hide_the_token_is_logged_without_it(shown: subprocess.Popen[bytes]) -> None:
    shown.kill()
    os.waitid(os.P_PID, shown.pid, os.WEXITED | os.WNOWAIT)  # ended, and still there: no memory
    with capture_logs() as logs:
        assert not admin_token.blank_out(shown.pid, TOKEN)
    (warning,) = logs
    assert "could not remove the access token from the command line" in warning["event"]
    assert warning["log_level"] == "warning"
    assert TOKEN not in str(warning)


def test_without_a_token_nothing_is_blanked_out() -> None:
    assert admin_token.blank_out(os.getpid(), None)
    assert admin_token.blank_out(os.getpid(), TOKEN)
    assert admin_token.hide(f"x{TOKEN}x", TOKEN) == "x***x"
    assert admin_token.hide("x", None) == "x"
