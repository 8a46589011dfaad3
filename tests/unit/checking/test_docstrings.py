"""The check of docstrings: which first words it refuses, and which it lets be."""

from __future__ import annotations

from pathlib import Path

import pytest
from checking import docstrings


@pytest.mark.parametrize(
    "first",
    [
        "What a client can ask of a daemon.",
        "Who waits for a call.",
        "That of the worker.",
        "It is tried again.",
        "Nobody waits for it any longer.",
        "As `run`, in an event loop.",
        "From a failed call to the exception that the user gets.",
    ],
)
def test_inversions_are_refused(first: str) -> None:
    (finding,) = docstrings.findings(f'"""{first}\n\nMore.\n"""\n')
    assert (finding.line, finding.text) == (1, first)


@pytest.mark.parametrize(
    "first",
    [
        "The questions of a client.",
        "Return what the dispatcher needs.",
        "Whatever is left.",
        "Items of a list.",
        "From here on, time is virtual.",
    ],
)
def test_other_words_are_not(first: str) -> None:
    assert list(docstrings.findings(f'class A:\n    """{first}"""\n')) == []


def test_each_place_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also in classes and functions within; the exit code tells."""
    source = 'class A:\n    def f(self):\n        """It ends."""\n\n    async def g(self):\n        """End."""\n'
    (tmp_path / "one.py").write_text(source)
    assert docstrings.main([str(tmp_path)]) == 1
    assert "one.py:3: It ends.\n    name the subject" in capsys.readouterr().out
    (tmp_path / "one.py").write_text("x = 1\n")
    assert docstrings.main([str(tmp_path)]) == 0
