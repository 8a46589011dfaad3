"""The exit codes when a running daemon refuses a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton._cli import daemon_connection
from pytriton._cli.errors import CliError
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir


@pytest.mark.parametrize("kind", ErrorKind)
def test_a_refusal_has_another_exit_code_than_a_missing_daemon(
    kind: ErrorKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts start a daemon if none runs; a draining or full daemon must not look like none."""

    def refuse(*what: object) -> messages.AnyMessage:
        raise RemoteFailure(kind, "model m was not scaled: the daemon drains")

    monkeypatch.setattr(daemon_connection, "_ask", refuse)
    monkeypatch.setattr(RuntimeDir, "running_pid", lambda rundir: 1)
    with pytest.raises(CliError, match="the daemon drains") as caught:
        daemon_connection.ask(RuntimeDir(tmp_path), messages.Scale("m", 2))
    expected = ExitCode.ERROR if kind is ErrorKind.INTERNAL else ExitCode.REGISTRATION_FAILED
    assert caught.value.code is expected
