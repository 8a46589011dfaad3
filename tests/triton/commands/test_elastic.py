"""Short runs of `scripts/elastic`; the figures of long ones are in docs/how-to/elastic.md."""

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


def test_a_square_wave_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--seconds", "2", "--period", "2", "--rate", "20", "--service", "0.02", "--most", "2"]
    code = main(["square", *short, "--out", str(tmp_path)])
    told = capsys.readouterr().out
    assert code == 0, told
    assert told.count(" 0 wrong, 0 failed") == 2
    assert "| 1 to 2 |" in told
    ElementTree.parse(tmp_path / "square-wave.svg")


def test_starts_find_all_names_ready(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["starts", "--models", "3"])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "\n| 3 | " in told
