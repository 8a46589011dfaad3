"""`auto_complete_config` runs in a separate process: whatever the model does there, the registration gets an outcome."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pytriton._protocol import messages
from pytriton._register.python_models import model_programs
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError

MODEL = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        {body}
        return config
"""


def complete(folder: Path, body: str, limit_s: float = 60) -> dict[str, Any]:
    """Return the model's completed configuration; `body` is the code that completes it."""
    (folder / "model.py").write_text(MODEL.format(body=body))
    question = {
        "sys_path": [], "folder": str(folder), "file": "model.py", "config": {"name": "m"},
    }  # fmt: skip
    world = messages.WorkerEnvironment(sys.executable, [], str(folder), dict(os.environ))
    return model_programs._ask_model(question, world, "m", limit_s)


@pytest.mark.programs
def test_a_model_may_print_any_bytes(tmp_path: Path) -> None:
    latin = "import os; os.write(1, b'caf\\xe9')"
    assert complete(tmp_path, f"{latin}; config.set_max_batch_size(4)")["max_batch_size"] == 4
    with pytest.raises(PyTritonValidationError, match=r"exited with status 3\ncaf\\xe9"):
        complete(tmp_path, f"{latin}; os._exit(3)")


@pytest.mark.programs
@pytest.mark.timeout(60)
def test_a_child_process_left_by_the_model_is_not_awaited(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    body = "import os; child = os.fork(); child or open('never').read(); open('pid', 'w').write(str(child))"
    complete(tmp_path, body)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it is there still


@pytest.mark.programs
def test_a_call_that_does_not_return_is_cancelled(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    with pytest.raises(
        PyTritonValidationError, match=r"did not return within 1 s \(load_timeout_s\)"
    ):
        complete(tmp_path, "open('never').read()", limit_s=1)


@pytest.mark.programs
def test_values_that_json_cannot_represent_are_the_models_error(tmp_path: Path) -> None:
    with pytest.raises(
        PyTritonValidationError, match=r"failed: TypeError: Object of type set is not JSON"
    ):
        complete(tmp_path, "config._config['dims'] = {1}")


def prepare(target: Any, **given: Any) -> messages.ModelSpec:
    """Return the registration of a model."""
    config = given.pop("config", None)
    return model_programs.prepare_model(target, "m", config, None, given, None)[0].spec


def test_a_class_must_return_its_configuration() -> None:
    class Forgetful:
        @staticmethod
        def auto_complete_config(config: Any) -> None:
            """Return nothing."""

    with pytest.raises(PyTritonValidationError, match=r"returned NoneType; it must return"):
        prepare(Forgetful, config={"backend": "python"})


def make_folder(folder: Path) -> Path:
    """Make the folder of a model."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("class TritonPythonModel: ...")
    (folder / "config.pbtxt").write_text(
        'output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]', encoding="utf-8"
    )
    return folder


def test_editor_files_are_not_model_sources(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "1" / ".#model.py").symlink_to("me@host.4242:1")
    (folder / "1" / "folder.py").mkdir()
    (folder / "1" / "helper.py").write_text("request.get_response_sender()")
    spec = prepare(folder)
    assert spec.python_model is not None
    assert spec.python_model.streams


def test_a_configuration_in_another_encoding_is_reported(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "config.pbtxt").write_bytes(b"# caf\xe9\n")
    with pytest.raises(
        PyTritonBadParameterError, match=r"config\.pbtxt cannot be read: 'utf-8' codec"
    ):
        prepare(folder)


def test_implicit_state_is_refused(tmp_path: Path) -> None:
    """Each request would get the initial state, and results of sequences would be silently wrong."""
    folder = make_folder(tmp_path / "m")
    with open(folder / "config.pbtxt", "a", encoding="utf-8") as file:
        file.write('sequence_batching { state [{ input_name: "a" output_name: "b" }] }')
    with pytest.raises(PyTritonValidationError, match=r"has implicit state.*config\.pbtxt"):
        prepare(folder)
