"""From a model's folder to an initialized instance."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytriton import pb_utils
from pytriton._protocol import messages
from pytriton.pb_utils import host
from pytriton.worker.callables import LoadError
from pytriton.worker.python_model.backend_host import WorkerHost
from pytriton.worker.python_model.loader import load_python_model, model_class
from pytriton.worker.request_log import CallLog

MODEL = """
import triton_python_backend_utils as pb_utils
from .helper import VALUE

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.value = VALUE

    def execute(self, requests):
        return []
"""


@pytest.fixture(autouse=True)
def _as_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before, modules, path = host.current(), dict(sys.modules), list(sys.path)
    yield
    host.use(before)
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(MODEL)
    (tmp_path / "1" / "helper.py").write_text("VALUE = 42\n")
    return tmp_path


def load(folder: Path, **more: Any) -> Any:
    model = messages.PythonModel(
        '{"name": "m"}', str(folder), names=["m_0_0"], kinds=["CPU"], device_ids=["0"]
    )
    world = messages.WorkerEnvironment("python")
    spec = messages.ModelSpec("m", 1, {}, world, python_model=model, **more)
    return load_python_model(
        b"", spec, 0, CallLog(), endpoint="ipc://x", worker="w1", begun=time.monotonic()
    )


def test_a_model_is_imported_created_and_initialized(folder: Path) -> None:
    loaded = load(folder)
    instance = loaded._instance
    assert instance.value == 42
    assert instance.args["model_instance_name"] == "m_0_0"
    assert instance.args["model_repository"] == str(folder)
    assert sys.modules["triton_python_backend_utils"] is pb_utils
    current = host.current()
    assert isinstance(current, WorkerHost)
    assert current.model_dir == str(folder / "1")


def test_a_folder_without_the_file_or_the_class_is_reported(folder: Path) -> None:
    with pytest.raises(LoadError, match=r"/1/other\.py does not exist"):
        model_class(folder / "1", "other.py")
    (folder / "1" / "model.py").write_text("class Other: pass\n")
    with pytest.raises(LoadError, match=r"model\.py defines no class TritonPythonModel"):
        model_class(folder / "1", "model.py")


def test_a_class_without_execute_is_reported(folder: Path) -> None:
    (folder / "1" / "model.py").write_text("class TritonPythonModel: pass\n")
    with pytest.raises(LoadError, match="class TritonPythonModel has no method `execute`"):
        load(folder)


def test_exceptions_of_the_model_are_raised(folder: Path) -> None:
    text = MODEL.replace("self.args = args", "raise pb_utils.TritonModelException('no weights')")
    (folder / "1" / "model.py").write_text(text)
    with pytest.raises(pb_utils.TritonModelException, match="no weights"):
        load(folder)


def test_waiting_for_readiness_is_limited_by_the_load_timeout(folder: Path) -> None:
    never = "\n    def is_ready(self):\n        return False\n"
    (folder / "1" / "model.py").write_text(MODEL + never)
    with pytest.raises(LoadError, match="ready"):
        load(folder, load_timeout_s=0.01)


def test_a_file_edited_within_the_same_second_is_reread(tmp_path: Path) -> None:
    """With the same size, so that cached bytecode would seem current."""
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    seen = []
    for number in (1, 2):
        file = folder / "model.py"
        file.write_text(f"class TritonPythonModel:\n    number = {number}\n")
        os.utime(file, (1_700_000_000, 1_700_000_000))
        seen.append(model_class(folder, "model.py").number)
    assert seen == [1, 2]
