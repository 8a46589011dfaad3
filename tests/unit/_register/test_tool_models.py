"""Targets that name models of other tools, and the requirements of model archives."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from pytriton._register import environment
from pytriton._register.environment import own_interpreter
from pytriton._register.tool_models import path_of, prepare_tool
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.formats.table import tool_of


@pytest.mark.parametrize(
    ("target", "scheme", "location"),
    [
        ("mlflow:./churn", "mlflow", "./churn"),
        ("mlflow:models:/churn/3", "mlflow", "models:/churn/3"),
        ("hf:text-classification=/m", "hf", "text-classification=/m"),
        ("litserve:app.py:Api", "litserve", "app.py:Api"),
    ],
)
def test_a_scheme_names_a_tool(target: str, scheme: str, location: str) -> None:
    found = tool_of(target)
    assert found is not None
    assert (found[0].scheme, found[1]) == (scheme, location)


@pytest.mark.parametrize("target", ["mlflow", "mlflow:", "app.py:predict", "model.onnx", 5, None])
def test_other_targets_name_no_tool(target: object) -> None:
    assert tool_of(target) is None


def test_the_path_in_a_location() -> None:
    assert path_of("text-classification=./a=b") == "./a=b"
    assert path_of("app.py:Api") == "app.py"
    assert path_of("/models/churn") == "/models/churn"


def archive(path: Path, requirements: str) -> str:
    manifest = {
        "model": {"modelName": "m", "handler": "h.py", "requirementsFile": "requirements.txt"}
    }
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        packed.writestr("requirements.txt", requirements)
        packed.writestr("h.py", "def handle(data, context): return data")
    return f"torchserve:{path}"


def test_an_archives_requirements_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[list[str]] = []

    def install(requirements: list[str], python: str, say: object) -> str:
        wanted.append(requirements)
        raise PyTritonBadParameterError("not now")

    monkeypatch.setattr(environment, "with_requirements", install)
    target = archive(tmp_path / "m.mar", "# packages\ntorch==2.1  # for the handler\n\nnumpy\n")
    with pytest.raises(PyTritonBadParameterError, match="not now"):
        prepare_tool(target, None, None, None, {}, None)
    assert wanted == [["torch==2.1", "numpy"]]


def test_a_named_interpreter_gets_an_archives_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "with_requirements", lambda *_: pytest.fail("installs"))
    target = archive(tmp_path / "m.mar", "torch\n")
    message, (payload,) = prepare_tool(
        target, "other", None, None, {"python": own_interpreter()}, None
    )
    assert message.spec.name == "other"
    assert message.spec.web is not None
    assert message.spec.web.path == "/predictions/other"
    assert b"pytriton.formats.torchserve" in payload


def test_options_of_triton_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PyTritonValidationError, match="omit them for TorchServe models"):
        prepare_tool(f"torchserve:{tmp_path}", None, None, 2, {}, None)
    with pytest.raises(PyTritonBadParameterError, match="there is no"):
        prepare_tool(f"torchserve:{tmp_path}/none.mar", None, None, None, {}, None)
