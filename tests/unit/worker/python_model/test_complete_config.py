"""What is told of an `auto_complete_config` that fails, whatever its exception does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pytriton

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
        ("Odd()", "Odd: (its text cannot be had: __str__ raised ZeroDivisionError)"),
        ("ValueError('\\udcff')", "ValueError: \\udcff"),
        ("SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_failure_is_told(tmp_path: Path, error: str, said: str) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(MODEL.format(error=error))
    question = {"sys_path": [], "folder": str(tmp_path), "file": "1/model.py", "config": {}}
    done = subprocess.run(
        [
            sys.executable,
            str(LIBRARY / "worker" / "python_model" / "complete_config.py"),
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
