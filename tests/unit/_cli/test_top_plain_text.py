"""`pytriton-daemon top` without a screen: a table printed once, and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from support.models.figures import model, snapshot, work

from pytriton._cli.top.cells import COLUMNS
from pytriton._cli.top.command import as_json_text, print_table
from pytriton._protocol import messages
from pytriton._protocol.rates import rows

TWO = snapshot(1010, model("digits", work(50)), model("words", work(100), last_exit="signal 11"))


def test_control_sequences_of_a_callable_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """The last exit quotes the text of an exception."""
    end = "RuntimeError: \x1b[2J\x1b]0;title\x07\nmodels: none\r"
    now = snapshot(1010, model("m", work(1), last_exit=end))
    now.daemon.problems.append(end)
    print_table(now, rows(None, now))
    text = capsys.readouterr().out
    assert text.count(r"RuntimeError: \x1b[2J\x1b]0;title\x07\nmodels: none\r") == 3
    assert all(char.isprintable() or char == "\n" for char in text)


_LONG = "could not be loaded: " + "x" * 300 + " the end"


def _with_a_long_end() -> messages.MetricsSnapshot:
    return snapshot(1010, model("a-model-with-a-name", work(50), last_exit=_LONG))


def test_nothing_is_truncated_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    now = _with_a_long_end()
    print_table(now, rows(None, now))
    daemon, head, line, _ = capsys.readouterr().out.splitlines()
    assert "ready, pid 1" in daemon
    for title in (one.title for one in COLUMNS):
        assert title in head
    assert line.startswith("a-model-with-a-name")
    assert line.rstrip().endswith(_LONG)


def test_on_a_terminal_only_the_last_exit_is_truncated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "150")
    now = _with_a_long_end()
    print_table(now, rows(None, now))
    lines = capsys.readouterr().out.splitlines()
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) <= 150
    assert any("a-model-with-a-name" in line and "could not be loaded" in line for line in lines)
    assert all("the end" not in line for line in lines)


def test_json_contains_numbers() -> None:
    found: dict[str, Any] = json.loads(as_json_text(TWO, rows(None, TWO), 2.0))
    rows_: Sequence[dict[str, Any]] = found["rows"]
    assert found["interval_s"] == 2.0
    assert [(one["model"], one["instance"]) for one in rows_][:2] == [
        ("digits", ""),
        ("digits", "0"),
    ]
    assert rows_[0]["rates"]["requests_s"] == 5.0
