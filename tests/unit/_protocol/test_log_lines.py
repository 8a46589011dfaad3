"""What a worker prints about an exception: one line of output."""

from __future__ import annotations

import io
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton._protocol.log_lines import (
    MARK,
    MAX_LINE_LENGTH,
    ErrorRecord,
    decoded,
    encoded,
    is_journal,
    print_error,
    record_of,
    with_priority,
)


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def trace_of(error: Exception) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def test_an_exception_is_sent_in_one_line_with_all_details() -> None:
    error = raised(ValueError("kaputt ✗\nzwei\r\ud800"))
    line, was_cut = encoded(record_of(error, trace_of(error), "it failed", ["7", "acht"], ["4bf9"]))
    assert not was_cut
    assert b"\n" not in line
    assert b"\r" not in line
    record = decoded(line)
    assert record is not None
    assert record.event == "it failed: ValueError: kaputt ✗"
    assert (record.error_type, record.error_message) == ("ValueError", "kaputt ✗\nzwei\r\\ud800")
    assert record.exception.startswith("Traceback (most recent call last)")
    assert record.exception.endswith("ValueError: kaputt ✗\nzwei\r\\ud800")
    assert (record.request_ids, record.trace_ids) == (["7", "acht"], ["4bf9"])


def test_long_records_are_truncated_in_the_middle() -> None:
    error = raised(ValueError("first " + "✗" * MAX_LINE_LENGTH + " last"))
    record = record_of(error, trace_of(error), "it failed")
    line, was_cut = encoded(record)
    assert was_cut
    assert len(line) < MAX_LINE_LENGTH
    cut = decoded(line)
    assert cut is not None
    assert cut.exception.startswith("Traceback")
    assert cut.exception.endswith("✗ last")
    assert "the full text follows" in cut.exception


@pytest.mark.parametrize("letter", ["\1", "\ud800", "✗", "\U0001f600"])
def test_the_line_limit_allows_any_request_ids(letter: str) -> None:
    """Clients choose the ids of a batch's requests, and may determine the error's text."""
    kind: type[Exception] = type("E" * 10_000, (Exception,), {})
    error = kind(letter * MAX_LINE_LENGTH)
    names = [f"{number}{letter * 300}" for number in range(100)]
    line, was_cut = encoded(record_of(error, letter * MAX_LINE_LENGTH, "it failed", names, names))
    assert was_cut
    assert len(line) < MAX_LINE_LENGTH
    record = decoded(line)
    assert record is not None
    assert record.request_ids[0].startswith("0")
    assert record.request_ids == record.trace_ids


@given(st.binary())
def test_lines_that_look_like_records_are_parsed_or_rejected(data: bytes) -> None:
    assert decoded(data) is None
    assert isinstance(decoded(MARK + data), (ErrorRecord, type(None)))
    assert decoded(MARK + b'{"event": 3}') is None
    assert decoded(MARK + b"[" * 100_000) is None


# ── Lines for systemd's journal: known by the stream's file, and marked line by line ──


def journal_of(stream: TextIO) -> str:
    """Return the value that systemd sets for a service with this output stream."""
    info = os.fstat(stream.fileno())
    return f"{info.st_dev}:{info.st_ino}"


@pytest.mark.parametrize("named", [None, "", "1:2", "nonsense"])
def test_only_the_stream_named_by_the_variable_is_the_journal(
    tmp_path: Path, named: str | None
) -> None:
    """A child inherits the variable, but has another standard error."""
    with open(tmp_path / "stream", "w") as stream:
        assert is_journal(stream, {"JOURNAL_STREAM": journal_of(stream)})
        assert not is_journal(stream, {} if named is None else {"JOURNAL_STREAM": named})
        assert not is_journal(None, {"JOURNAL_STREAM": journal_of(stream)})
        assert not is_journal(io.StringIO(), {"JOURNAL_STREAM": journal_of(stream)})


@pytest.mark.parametrize(
    ("level", "marked"),
    [
        ("debug", "<7>two\n<7>lines"),
        ("info", "<6>two\n<6>lines"),
        ("warning", "<4>two\n<4>lines"),
        ("error", "<3>two\n<3>lines"),
        ("critical", "<2>two\n<2>lines"),
        ("unheard of", "<6>two\n<6>lines"),
    ],
)
def test_each_line_has_a_priority(level: str, marked: str) -> None:
    assert with_priority("two\nlines", level) == marked


@pytest.mark.parametrize("in_journal", [False, True])
def test_errors_have_error_priority_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_journal: bool
) -> None:
    with open(tmp_path / "stream", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        if in_journal:
            monkeypatch.setitem(os.environ, "JOURNAL_STREAM", journal_of(stream))
        print_error("no such\nfile")
    said = (tmp_path / "stream").read_text()
    assert said == ("<3>no such\n<3>file\n" if in_journal else "no such\nfile\n")
