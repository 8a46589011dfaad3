"""config.pbtxt: how it is read, passed to tritonserver, and passed to the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytriton._host import gpus
from pytriton._register.python_models import model_dir
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError

TEXT = """
name: "m"
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] label_filename: "labels.txt" } ]
dynamic_batching { max_queue_delay_microseconds: 500 priority_queue_policy { key: 1 value { max_queue_size: 2 } } }
instance_group [ { kind: KIND_GPU count: 2 gpus: [ 0, 3 ] }, { kind: KIND_CPU name: "c" } ]
parameters { key: "size" value { string_value: "big" } }
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env" } }
version_policy { all {} }
default_model_filename: "other.py"
"""


def test_the_configuration_for_tritonserver() -> None:
    assert model_dir.config_for_triton(model_dir.parse_config(TEXT, "it"), [3]) == {
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3]}],
        "output": [
            {"name": "y", "data_type": "TYPE_STRING", "dims": [1], "label_filename": "labels.txt"}
        ],
        "dynamic_batching": {
            "max_queue_delay_microseconds": 500,
            "priority_queue_policy": {"1": {"max_queue_size": 2}},
        },
        "parameters": {"size": {"string_value": "big"}},
        "version_policy": {"specific": {"versions": [3]}},
    }


def test_the_configuration_for_the_model() -> None:
    reported = json.loads(model_dir.config_for_model(model_dir.parse_config(TEXT, "it")))
    assert reported["input"][0] == {
        "name": "x", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [-1, 3],
        "is_shape_tensor": False, "allow_ragged_batch": False, "optional": False,
        "is_non_linear_format_io": False,
    }  # fmt: skip
    assert reported["default_model_filename"] == "other.py"
    assert set(reported["parameters"]) == {"size", "EXECUTION_ENV_PATH"}
    assert [group["name"] for group in reported["instance_group"]] == ["m_0", "c"]
    assert reported["version_policy"] == {"all": {}}
    assert "ensemble_scheduling" not in reported


def test_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,5,7,GPU-b")
    places = model_dir.places_of(model_dir.parse_config(TEXT, "it"))
    assert [place.kind for place in places] == ["GPU"] * 4 + ["CPU"]
    assert [place.device for place in places] == ["0", "3", "0", "3", "0"]
    assert places[-1].name == "c_0"
    assert len({place.name for place in places}) == 5
    # Each instance sees its own GPU; additional instances use the groups in turn.
    assert model_dir.devices_of(places, 6) == ["GPU-a", "GPU-b", "GPU-a", "GPU-b", None, "GPU-a"]
    assert model_dir.devices_of(places[4:], 1) == []
    every = model_dir.parse_config('name: "n" instance_group [ { kind: KIND_GPU } ]', "it")
    assert [place.name for place in model_dir.places_of(every)] == [
        f"n_0_0_gpu{gpu}" for gpu in range(4)
    ]
    assert model_dir.places_of(model_dir.parse_config('name: "n"', "it")) == [("n_0", "CPU", "0")]


def test_missing_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = model_dir.parse_config('name: "n" instance_group [ { kind: KIND_GPU } ]', "it")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(PyTritonValidationError, match=r"no GPU \(\$CUDA_VISIBLE_DEVICES is set"):
        model_dir.places_of(config)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "none")
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    with pytest.raises(PyTritonValidationError, match=r"has no GPU\. Use KIND_CPU"):
        model_dir.places_of(config)
    for name in ("nvidia0", "nvidia1", "nvidiactl"):  # a container
        (tmp_path / name).touch()
    assert model_dir.devices_of(model_dir.places_of(config), 2) == ["0", "1"]
    third = 'name: "n" instance_group [ { kind: KIND_GPU gpus: [ 0, 2 ] } ]'
    with pytest.raises(PyTritonValidationError, match="GPU 2, but this machine has the GPUs 0, 1"):
        model_dir.places_of(model_dir.parse_config(third, "it"))
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "driver")
    (tmp_path / "driver" / "0000:01:00.0").mkdir(parents=True)
    assert gpus.visible() == ["0"]


def test_versions(tmp_path: Path) -> None:
    for version in ("1", "3", "10", "03", "notes"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "model.py").touch()
    (tmp_path / "11").mkdir()

    def chosen(policy: str, wanted: int | None = None) -> list[int]:
        config = model_dir.parse_config(policy, "it")
        return model_dir.chosen_versions(tmp_path, "model.py", config, wanted)

    assert chosen("") == [10]
    assert chosen("version_policy { specific { versions: [ 3, 4 ] } }") == [3]
    assert chosen("version_policy { all {} }", 1) == [1]
    assert chosen("version_policy { all {} }") == [1, 3, 10]
    assert chosen("version_policy { latest { num_versions: 2 } }") == [3, 10]
    with pytest.raises(PyTritonBadParameterError, match="selects none of its versions"):
        chosen("version_policy { specific { versions: 7 } }")
    with pytest.raises(PyTritonBadParameterError, match="no version 2"):
        chosen("", 2)


def test_environment(tmp_path: Path) -> None:
    config = model_dir.parse_config(TEXT, "it")
    with pytest.raises(PyTritonBadParameterError, match="env"):
        model_dir.environment_of(config, tmp_path)
    (tmp_path / "env").mkdir()
    assert model_dir.environment_of(config, tmp_path) == str(tmp_path / "env")
    assert model_dir.environment_of(model_dir.parse_config("", "it"), tmp_path) is None


@pytest.mark.parametrize("text", ["max_batch: 3", "max_batch_size: x", "input [ {"])
def test_malformed_configurations_are_reported_with_their_place(text: str) -> None:
    with pytest.raises(
        PyTritonBadParameterError, match=r"here\.pbtxt is not a valid model configuration: 1:"
    ):
        model_dir.parse_config(text, "here.pbtxt")


def test_json_form() -> None:
    config = model_dir.parse_config(TEXT, "it")
    assert model_dir.config_of(model_dir.plain(config), "it") == config
    with pytest.raises(PyTritonBadParameterError, match="nonsense"):
        model_dir.config_of({"nonsense": 1}, "it")
