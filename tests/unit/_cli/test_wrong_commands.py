"""Errors that are found while a command runs: it exits with 2 and a sentence, not a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.forks.prefork import command

from pytriton._protocol.exit_codes import ExitCode


@pytest.mark.parametrize(
    "arguments", [("status",), ("models",), ("stop",), ("events",), ("top", "--once")]
)
def test_a_file_as_the_runtime_directory_is_reported(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    env = {**os.environ, "COLUMNS": "200"}
    done = command(*arguments, "--runtime-dir", "file", cwd=tmp_path, env=env)
    said = " ".join(done.stderr.replace("│", " ").split())
    assert f"runtime directory {tmp_path}/file: Not a directory." in said
    assert "Traceback" not in said
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")


@pytest.mark.programs
@pytest.mark.parametrize(
    ("command", "code"),
    [(("status",), ExitCode.NO_DAEMON), (("stop",), ExitCode.NO_DAEMON), (("doctor",), None)],
)
def test_a_deleted_working_directory_is_reported(
    command: tuple[str, ...], code: ExitCode | None, tmp_path: Path
) -> None:
    """For example, an open shell in a checkout that was deleted and cloned again."""
    gone = tmp_path / "gone"
    gone.mkdir()
    env = {**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": str(tmp_path / "run")}
    # A new program, because a fork would have its parent's directory.
    script = 'cd "$0" && rmdir "$0" && exec "$@"'
    done = subprocess.run(
        ["/bin/sh", "-c", script, str(gone), sys.executable, "-m", "pytriton._cli", *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "the working directory has been deleted" in done.stderr
    assert code is None or done.returncode == code  # doctor looks at the machine
