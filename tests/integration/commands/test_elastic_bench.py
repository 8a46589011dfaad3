"""Short runs of `scripts/tools/elastic-bench`; the figures of long ones are in docs/how-to/elastic.md."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from elastic_bench.__main__ import main


def test_six_models_keep_to_the_memory_of_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = [
        "--seconds",
        "3",
        "--models",
        "6",
        "--models-in-memory",
        "3",
        "--weights",
        "16",
        "--rate",
        "4",
    ]
    code = main(["budget", *short, "--out", str(tmp_path)])
    reported = capsys.readouterr().out
    assert code == 0, reported
    assert " 0 wrong, 0 failed" in reported
    assert re.search("most loaded at once [23]$", reported, re.MULTILINE)
    ElementTree.parse(tmp_path / "memory-budget.svg")


def test_a_square_wave_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = [
        "--seconds",
        "2",
        "--period",
        "2",
        "--rate",
        "20",
        "--service",
        "0.02",
        "--max-instances",
        "2",
    ]
    code = main(["square", *short, "--out", str(tmp_path)])
    reported = capsys.readouterr().out
    assert code == 0, reported
    assert reported.count(" 0 wrong, 0 failed") == 2
    assert "| 1 to 2 |" in reported
    ElementTree.parse(tmp_path / "square-wave.svg")


def test_starts_find_all_names_ready(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["starts", "--models", "3"])
    reported = capsys.readouterr().out
    assert code == 0, reported
    assert "\n| 3 | " in reported
