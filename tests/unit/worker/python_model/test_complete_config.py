"""The report of a failed `auto_complete_config`, whatever its exception does."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

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
"""


def ask(folder: Path, body: str, file: str) -> tuple[Any, str]:
    """Have a model in a folder complete its configuration; return the answer and the standard error."""
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(MODEL + textwrap.indent(body, 8 * " "))
    question = {"sys_path": [], "folder": str(folder), "file": file, "config": {"name": "m"}}
    done = subprocess.run(
        [sys.executable, complete_config.__file__, str(LIBRARY)],
        input=json.dumps(question) + "\n", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return json.loads(done.stdout), done.stderr


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
    answer, _ = ask(tmp_path, f"raise {error}", "1/model.py")
    assert answer["error"] == said
    assert "auto_complete_config" in answer["traceback"]


def test_the_completed_configuration_is_returned_without_printed_output(tmp_path: Path) -> None:
    body = "print('completing')\nconfig.set_max_batch_size(4)\nreturn config"
    answer, log = ask(tmp_path, body, "model.py")
    assert answer["config"]["max_batch_size"] == 4
    assert "completing" in log
