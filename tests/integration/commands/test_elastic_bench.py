"""Short runs of `scripts/tools/elastic-bench`."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from elastic.bench import main


def test_six_models_stay_within_the_memory_of_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--seconds 3 --models 6 --models-in-memory 3 --weights 16 --rate 4"
    code = main(["budget", *options.split(), "--out", str(tmp_path)])
    output = capsys.readouterr().out
    assert code == 0, output
    assert " 0 wrong, 0 failed" in output
    assert re.search("at most [23] models loaded$", output, re.MULTILINE)
    ElementTree.parse(tmp_path / "memory-budget.svg")


def test_scaling_with_a_square_wave_loses_no_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--seconds 2 --period 2 --rate 20 --service 0.02 --max-instances 2"
    code = main(["square", *options.split(), "--out", str(tmp_path)])
    output = capsys.readouterr().out
    assert code == 0, output
    assert output.count(" 0 wrong, 0 failed") == 2
    assert "| 1 to 2 |" in output
    ElementTree.parse(tmp_path / "square-wave.svg")


def test_lazy_models_are_ready_after_a_start(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["starts", "--models", "3"])
    output = capsys.readouterr().out
    assert code == 0, output
    assert "\n| 3 | " in output
