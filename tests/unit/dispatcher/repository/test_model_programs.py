"""Programs that look into a model's files: real processes, with a module that this test writes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytriton.dispatcher.repository.model_folders import UnservableModel
from pytriton.dispatcher.repository.model_programs import Program, ask

#: Prints what it is told to, and what it sees.
_CODE = """
import json, os, sys, time

def main():
    question = json.load(sys.stdin)
    print("a library says hello")
    print("a complaint", file=sys.stderr)
    if "sleep" in question:
        time.sleep(1000)
    if "say" in question:
        print(question["say"])
        return
    seen = {"cwd": os.getcwd(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "path": sys.path}
    print(json.dumps({"asked": question, **seen}))
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "look_into.py").write_text(_CODE)
    return folder


def answer(
    library: Path,
    question: Mapping[str, Any],
    *,
    limit_s: float = 60.0,
    python: str = sys.executable,
    packages: str = "",
    hide_gpus: bool = True,
) -> dict[str, Any]:
    program = Program("look_into", "looking into it", limit_s, hide_gpus)
    asking = ask(
        program, question, model="m", folder=library.parent, python=python, library=library,
        packages=packages,
    )  # fmt: skip
    return asyncio.run(asking)


def test_a_question_is_answered(
    library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the model's folder, with our library first and the packages last, and without GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    said = answer(library, {"what": "é"}, packages="/packages")
    assert said["asked"] == {"what": "é"}
    assert said["cwd"] == str(tmp_path)
    assert said["gpus"] == ""
    assert (said["path"][0], said["path"][-1]) == (str(library), "/packages")
    assert answer(library, {}, hide_gpus=False)["gpus"] == "0,1"


@pytest.mark.parametrize(
    ("question", "options", "words"),
    [
        ({"say": json.dumps({"error": "it has no input"})}, {}, r"^model m: it has no input$"),
        ({"say": "{"}, {}, r"looking into it failed: a complaint"),
        ({"say": "\udcff"}, {}, r"looking into it failed: a complaint"),
        ({"sleep": True}, {"limit_s": 0.5}, r"looking into it took longer than 0\.5 s"),
        (
            {},
            {"python": "/nowhere/python"},
            r"/nowhere/python \(setting model_python\) cannot be run: there is no such program",
        ),
    ],
    ids=["an error", "no JSON", "no text", "too slow", "no interpreter"],
)
def test_errors_of_a_program_are_reported(
    library: Path, question: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnservableModel, match=words):
        answer(library, question, **options)
