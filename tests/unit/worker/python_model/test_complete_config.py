"""The report of a failed `auto_complete_config`, whatever its exception does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pytriton
from pytriton.worker.python_model import complete_config

pytestmark = pytest.mark.programs

LIBRARY = Path(pytriton.__file__).parent
MODEL = """
class Odd(Exception):
    def __str__(self):
        raise ZeroDivisionError

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        raise {error}
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ValueError('no')", "ValueError: no"),
        ("Odd()", "Odd: (no text available: __str__ raised ZeroDivisionError)"),
        ("ValueError('\\udcff')", "ValueError: \\udcff"),
        ("SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_failure_is_reported(tmp_path: Path, error: str, said: str) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(MODEL.format(error=error))
    question = {"sys_path": [], "folder": str(tmp_path), "file": "1/model.py", "config": {}}
    done = subprocess.run(
        [
            sys.executable,
            complete_config.__file__,
            str(LIBRARY),
        ],
        input=json.dumps(question) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["error"] == said
    assert "auto_complete_config" in answer["traceback"]


def test_the_completed_configuration_is_returned_without_printed_output(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(
        """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        print("completing")
        config.set_max_batch_size(4)
        return config
"""
    )
    question = {
        "sys_path": [], "folder": str(tmp_path / "1"), "file": "model.py", "config": {"name": "m"},
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, complete_config.__file__, str(LIBRARY)],
        input=json.dumps(question) + "\n", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["config"]["max_batch_size"] == 4
    assert "completing" in done.stderr
