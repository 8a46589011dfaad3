"""Models loaded before tritonserver's ports open, the readiness gate, and placeholders."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from structlog.testing import capture_logs
from tritonclient.grpc import model_config_pb2

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.parameters import STAND_IN_PARAMETER
from pytriton.dispatcher.server import preload_layout
from pytriton.dispatcher.server.preload_layout import GATE, Gate

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


def test_the_gate_is_an_unloadable_model(models: Path) -> None:
    assert preload_layout.lay_out(models, {}, gate=True) == [GATE]
    assert _written(models, GATE).backend == "models_are_being_loaded"
    assert (models / GATE / "1").is_dir()


def test_models_with_an_unwritable_configuration_are_loaded_later(models: Path) -> None:
    with capture_logs() as logs:
        names = preload_layout.lay_out(
            models, {"m": {"no_such_field": 1}, "other": _CONFIG}, gate=False
        )
    assert names == ["other"]
    assert [(one["log_level"], one["model"]) for one in logs] == [("warning", "m")]
    assert "no_such_field" in logs[0]["why"]


def test_a_placeholder_has_the_model_s_tensors_and_costs_nothing() -> None:
    config = preload_layout.placeholder(_CONFIG, "it is being stopped")
    assert config["input"] == _CONFIG["input"]
    assert config["instance_group"] == [{"kind": "KIND_CPU", "count": 1}]
    assert "model_warmup" not in config
    assert "response_cache" not in config
    assert config["parameters"] == {
        "mine": {"string_value": "1"},
        STAND_IN_PARAMETER: {"string_value": "it is being stopped"},
    }
    assert "response_cache" in _CONFIG  # the argument is not changed


class Server:
    """Records requests. An unloaded model stays in the index for `looks` more polls."""

    def __init__(self, looks: int = 0, *, up: bool = True) -> None:
        self.requests: list[str] = []
        self._looks = looks
        self._up = up

    async def load(self, name: str, config: dict[str, Any] | None) -> None:
        assert config is not None
        self.requests.append(f"load {name} of {config['backend']}")
        if not self._up or config["backend"] != "pytriton":
            raise RemoteFailure(ErrorKind.LOAD_FAILED, "there is no such backend")

    async def unload(self, name: str) -> None:
        self.requests.append(f"unload {name}")

    async def repository_states(self) -> dict[str, str]:
        self.requests.append("states")
        self._looks -= 1
        return {"m": "READY", **({GATE: "UNLOADING"} if self._looks >= 0 else {})}


@pytest.fixture
def closed(tmp_path: Path) -> Gate:
    preload_layout.lay_out(tmp_path, {}, gate=True)
    return Gate(tmp_path, "pytriton")


def test_the_gate_opens_when_its_model_is_unloaded(tmp_path: Path, closed: Gate) -> None:
    server = Server(looks=2)
    asyncio.run(closed.open(server))
    opened = [f"load {GATE} of pytriton", f"unload {GATE}"]
    assert server.requests == [*opened, "states", "states", "states"]
    assert list(tmp_path.iterdir()) == []


def test_a_gate_that_cannot_be_opened_stays_closed(tmp_path: Path, closed: Gate) -> None:
    with pytest.raises(RemoteFailure, match="no such backend"):
        asyncio.run(closed.open(Server(up=False)))
    assert (tmp_path / GATE / "1").is_dir()
