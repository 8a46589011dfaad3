"""Lines for systemd's journal: known by the stream's file, and marked line by line."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TextIO

import pytest

from pytriton._protocol.journal import is_journal, print_error, with_priority


def journal_of(stream: TextIO) -> str:
    """Return the variable that systemd sets for a service whose stream this is."""
    info = os.fstat(stream.fileno())
    return f"{info.st_dev}:{info.st_ino}"


@pytest.mark.parametrize("named", [None, "", "1:2", "nonsense"])
def test_only_the_stream_that_the_variable_names_is_the_journal(
    tmp_path: Path, named: str | None
) -> None:
    """A child inherits the variable, and has another standard error."""
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
def test_each_line_has_its_priority(level: str, marked: str) -> None:
    assert with_priority("two\nlines", level) == marked


@pytest.mark.parametrize("in_journal", [False, True])
def test_an_error_is_one_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_journal: bool
) -> None:
    with open(tmp_path / "stream", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        if in_journal:
            monkeypatch.setitem(os.environ, "JOURNAL_STREAM", journal_of(stream))
        print_error("no such\nfile")
    said = (tmp_path / "stream").read_text()
    assert said == ("<3>no such\n<3>file\n" if in_journal else "no such\nfile\n")
