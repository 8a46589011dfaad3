"""`restart --server`: reports about the new server, and about the one that it replaced."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pytriton._cli import daemon_connection
from pytriton._cli.commands import daemon
from pytriton._cli.errors import CliError
from pytriton._cli.tables import retiring
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir


def _server(pid: int | None, *left: messages.RetiringServer) -> messages.ServerInfo:
    return messages.ServerInfo("ready" if pid else "starting", pid, retiring=list(left))


def _replace(
    monkeypatch: pytest.MonkeyPatch, rundir: RuntimeDir, now: messages.ServerInfo
) -> list[bool]:
    """Run the command: process 2 replaces process 1, with the given outcome."""
    asked = []

    def replace_server(_: RuntimeDir, *, force: bool) -> messages.ServerReplaced:
        asked.append(force)
        return messages.ServerReplaced(2, 1)

    class Status:
        server = now

    monkeypatch.setattr(daemon_connection, "replace_server", replace_server)
    monkeypatch.setattr(daemon_connection, "ask_status", lambda _: Status)
    daemon._replace_server(rundir, True)
    return asked


def test_the_new_server_and_leftovers_of_the_old_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    now = time.time()
    left = messages.RetiringServer(1, now, now + 3600, connections=2, requests=3)
    rundir = RuntimeDir(tmp_path)
    assert _replace(monkeypatch, rundir, _server(2, left)) == [True]
    said = capsys.readouterr().out
    assert said.startswith(
        "tritonserver was replaced (pid 2)\n  pid 1 was replaced and still has 3 "
    )
    assert retiring(_server(2, left))[0] in said
    assert "requests on 2 connections" in said


@pytest.mark.parametrize("pid", [None, 3])
def test_a_new_server_that_already_exited_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, pid: int | None
) -> None:
    with pytest.raises(
        CliError, match=r"replaced \(pid 2\), but the new process has already exited"
    ) as caught:
        _replace(monkeypatch, RuntimeDir(tmp_path), _server(pid))
    assert caught.value.code is ExitCode.ERROR
