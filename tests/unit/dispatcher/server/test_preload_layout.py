"""What is laid out for tritonserver to load before its ports are open, and what stands in a model's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from structlog.testing import capture_logs
from tritonclient.grpc import model_config_pb2

from pytriton._protocol.parameters import STAND_IN_PARAMETER
from pytriton.dispatcher.server import preload_layout
from pytriton.dispatcher.server.preload_layout import GATE

_CONFIG: dict[str, Any] = {
    "name": "m",
    "backend": "pytriton",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    "instance_group": [{"kind": "KIND_CPU", "count": 4}],
    "model_warmup": [{"name": "w", "batch_size": 1}],
    "response_cache": {"enable": True},
    "parameters": {"mine": {"string_value": "1"}},
}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("m", "other"):
        (tmp_path / name / "1").mkdir(parents=True)
    return tmp_path


def _written(models: Path, name: str) -> Any:
    text = (models / name / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_models_are_laid_out_for_the_start_and_cleared_after_it(models: Path) -> None:
    names = preload_layout.lay_out(models, {"m": _CONFIG, "gone": _CONFIG}, gate=False)
    assert names == ["m"]
    written = _written(models, "m")
    assert (written.max_batch_size, written.instance_group[0].count) == (8, 4)
    assert sorted(path.name for path in models.iterdir()) == ["m", "other"]
    preload_layout.clear(models, names)
    assert [path.name for path in (models / "m").iterdir()] == ["1"]
    preload_layout.clear(models, names)  # nothing is left to clear


def test_the_gate_is_a_model_that_no_backend_can_load(models: Path) -> None:
    assert preload_layout.lay_out(models, {}, gate=True) == [GATE]
    assert _written(models, GATE).backend == "models_are_being_loaded"
    assert (models / GATE / "1").is_dir()
    assert preload_layout.closed_gate()["backend"] == "models_are_being_loaded"
    preload_layout.remove_gate(models)
    preload_layout.remove_gate(models)  # nothing happens
    assert not (models / GATE).exists()


def test_a_configuration_that_cannot_be_written_is_left_to_a_request(models: Path) -> None:
    with capture_logs() as logs:
        names = preload_layout.lay_out(
            models, {"m": {"no_such_field": 1}, "other": _CONFIG}, gate=False
        )
    assert names == ["other"]
    assert [(one["log_level"], one["model"]) for one in logs] == [("warning", "m")]
    assert "no_such_field" in logs[0]["why"]


def test_a_placeholder_has_the_model_s_tensors_and_costs_nothing() -> None:
    config = preload_layout.stand_in(_CONFIG, "it is being stopped")
    assert config["input"] == _CONFIG["input"]
    assert config["instance_group"] == [{"kind": "KIND_CPU", "count": 1}]
    assert "model_warmup" not in config
    assert "response_cache" not in config
    assert config["parameters"] == {
        "mine": {"string_value": "1"},
        STAND_IN_PARAMETER: {"string_value": "it is being stopped"},
    }
    assert "response_cache" in _CONFIG  # which is somebody else's
