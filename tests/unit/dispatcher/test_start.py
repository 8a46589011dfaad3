"""A daemon started by the command line: what it inherits, and what it does not."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from pytriton._host.settings.declarations import ENV_OWNER, DaemonConfig
from pytriton._protocol.exit_codes import ExitCode
from pytriton.dispatcher import run, start
from pytriton.dispatcher.server import admin_token

#: Replaces the interpreter: writes what it received to standard output.
STAND_IN = f"""#!{sys.executable}
import json, os, sys
print(json.dumps({{
    "arguments": sys.argv[1:],
    "settings": json.load(sys.stdin),
    "notify": os.environ.get("NOTIFY_SOCKET"),
    "own_session": os.getsid(0) == os.getpid(),
    "cwd": os.getcwd(),
}}))
print("a word before the log", file=sys.stderr)
"""


def config_of(tmp_path: Path, **settings: Any) -> DaemonConfig:
    return DaemonConfig(runtime_dir=str(tmp_path / "run"), **settings)


def test_a_daemon_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It outlives this process, and does not notify the service manager on its behalf."""
    program = tmp_path / "python"
    program.write_text(STAND_IN)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    output = tmp_path / "startup.log"
    with open(output, "wb") as file:
        process = start.spawn(config_of(tmp_path, http_port=1234, log_format="json"), file)
    assert process.wait(60) == 0
    reported, words = sorted(output.read_text().splitlines(), reverse=True)
    got = json.loads(reported)
    assert words == "a word before the log"
    assert got["arguments"] == ["-m", "pytriton.dispatcher", "--config-json", "-"]
    assert (got["settings"]["http_port"], got["settings"]["log_format"]) == (1234, "none")
    assert (got["notify"], got["own_session"], got["cwd"]) == (None, True, "/")


def test_a_daemon_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def record(*arguments: Any) -> int:
        asked.append(arguments)
        return 7

    def on_ready(status: Any) -> None:
        raise AssertionError("nothing becomes ready here")

    monkeypatch.setattr(run, "run", record)
    monkeypatch.delenv(ENV_OWNER, raising=False)
    config = config_of(tmp_path)
    assert start.run_here(config, on_ready) == 7
    assert asked == [(config, on_ready, None)]


def test_an_invalid_owner_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENV_OWNER, "me")
    assert start.run_here(config_of(tmp_path), lambda status: None) == ExitCode.USAGE
    assert f"environment variable {ENV_OWNER}: 'me' is not a process id" in capsys.readouterr().err


def test_the_token_among_the_arguments_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden: list[Any] = []
    monkeypatch.setattr(admin_token, "blank_out", lambda *given: hidden.append(given))
    start.hide_token(config_of(tmp_path, access_token="t" * 20))
    assert hidden == [(os.getpid(), "t" * 20)]
