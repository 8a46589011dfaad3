"""A short run of `scripts/elastic budget`; the figures of a long one are in docs/how-to/elastic.md."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from showing.__main__ import main


def test_six_models_keep_to_the_memory_of_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--seconds", "3", "--models", "6", "--room", "3", "--weights", "16", "--rate", "4"]
    code = main(["budget", *short, "--out", str(tmp_path)])
    told = capsys.readouterr().out
    assert code == 0, told
    assert " 0 wrong, 0 failed" in told
    assert re.search("most loaded at once [23]$", told, re.MULTILINE)
    ElementTree.parse(tmp_path / "memory-budget.svg")
