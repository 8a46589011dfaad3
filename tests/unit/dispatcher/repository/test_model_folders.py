"""Model repositories as the daemon reads them: versions, routing, instances, and clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.models import repositories

from pytriton.dispatcher.repository.model_folders import (
    UnservableModel,
    files_of,
    model_names,
    read_model,
    route,
    served_versions,
    snapshot,
)
from pytriton.formats import pbtxt, table


@pytest.fixture
def pip_backends(tmp_path: Path) -> Path:
    """The backends of the pip-installed tritonserver."""
    for name in ("python", "pytriton"):
        (tmp_path / "backends" / name).mkdir(parents=True)
    return tmp_path / "backends"


def write(repository: Path, name: str, file: str, config: str | None = None) -> Path:
    return repositories.add(repository, name, {f"1/{file}": b""}, config)


CASES = [
    ("model.onnx", None, "onnxruntime", "ONNX"),
    ("model.onnx", 'backend: "onnxruntime"', "onnxruntime", "ONNX"),
    ("model.onnx", 'platform: "onnxruntime_onnx"', "onnxruntime", "ONNX"),
    ("model.pt", 'platform: "pytorch_libtorch"', "pytorch", "PyTorch"),
    ("model.savedmodel/saved_model.pb", None, "tensorflow", "TensorFlow SavedModel"),
    ("model.joblib", None, "sklearn", "scikit-learn"),
    ("xgboost.json", 'backend: "fil"', "fil", "XGBoost"),
    ("model.txt", 'backend: "fil"', "fil", "LightGBM"),
]


@pytest.mark.parametrize(("file", "config", "backend", "title"), CASES)
def test_workers_serve_formats_that_tritonserver_has_no_backend_for(
    tmp_path: Path, pip_backends: Path, file: str, config: str | None, backend: str, title: str
) -> None:
    model = read_model(write(tmp_path / "models", "m", file, config))
    form = route(model, pip_backends)
    assert form is not None
    assert form.title == title
    # With the backend, as in NVIDIA's containers, tritonserver serves it itself.
    (pip_backends / backend).mkdir()
    (pip_backends / backend / f"libtriton_{backend}.so").touch()
    assert route(model, pip_backends) is None


@pytest.mark.parametrize("config", [None, 'backend: "python"'])
def test_workers_serve_python_models(
    tmp_path: Path, pip_backends: Path, config: str | None
) -> None:
    folder = write(tmp_path / "models", "m", "model.py", config)
    assert route(read_model(folder), pip_backends, ["another"]) is table.PYTHON
    for native in (["m"], ["another", "*"]):
        assert route(read_model(folder), pip_backends, native) is None
    (folder / "1" / "batchstrategy.so").touch()
    assert route(read_model(folder), pip_backends) is None


@pytest.mark.parametrize(
    ("file", "config"),
    [
        ("model.py", 'model_repository_agents { agents [ { name: "checksum" } ] }'),
        ("nothing", 'platform: "ensemble"'),
        ("libtriton_mine.so", 'backend: "mine"'),
    ],
)
def test_tritonserver_serves_formats_of_its_backends(
    tmp_path: Path, pip_backends: Path, file: str, config: str | None
) -> None:
    assert route(read_model(write(tmp_path / "models", "m", file, config)), pip_backends) is None


@pytest.mark.parametrize(
    ("file", "config", "text"),
    [
        ("model.plan", 'platform: "tensorrt_plan"', "no backend 'tensorrt' .it has python.*ONNX"),
        ("model.graphdef", 'platform: "tensorflow_graphdef"', "no backend 'tensorflow'"),
        ("weights.bin", None, r"no config.pbtxt that names a backend.*model.onnx \(ONNX\)"),
    ],
)
def test_unservable_models_are_reported(
    tmp_path: Path, pip_backends: Path, file: str, config: str | None, text: str
) -> None:
    model = read_model(write(tmp_path / "models", "m", file, config))
    with pytest.raises(UnservableModel, match=text):
        route(model, pip_backends)


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ({}, [12]),
        ({"latest": {"num_versions": 2}}, [3, 12]),
        ({"latest": {"num_versions": 9}}, [1, 3, 12]),
        ({"all": {}}, [1, 3, 12]),
        ({"specific": {"versions": ["3", "1", "7"]}}, [1, 3]),
    ],
)
def test_version_policies(policy: dict[str, Any], served: list[int]) -> None:
    assert served_versions({"version_policy": policy} if policy else {}, [12, 1, 3]) == served


def test_a_version_without_its_file_is_reported(tmp_path: Path, pip_backends: Path) -> None:
    folder = repositories.add(
        tmp_path, "m", {"1/model.onnx": b"", "2/other": b""}, "version_policy { all {} }"
    )
    model = read_model(folder)
    form = route(model, pip_backends)
    assert form is not None
    with pytest.raises(UnservableModel, match=r"m/2 has no model\.onnx, which an ONNX model needs"):
        files_of(model, form)
    named = model.with_config({"default_model_filename": "other", "backend": "onnxruntime"})
    assert files_of(named, form) == {2: folder / "2" / "other"}
    with pytest.raises(UnservableModel, match=r"selects none of its versions.*has 1, 2"):
        files_of(model.with_config({"version_policy": {"specific": {"versions": [9]}}}), form)


def test_only_integers_are_versions(tmp_path: Path) -> None:
    files = {"1/x": b"", "02/x": b"", "v3/x": b"", "0/x": b"", "10/x": b""}
    assert sorted(read_model(repositories.add(tmp_path, "m", files)).versions) == [1, 10]


def test_an_invalid_configuration_is_reported_with_its_position(tmp_path: Path) -> None:
    folder = write(tmp_path, "m", "model.onnx", 'input [ { name: "x" dimms: 4 } ]')
    with pytest.raises(UnservableModel, match=r"config\.pbtxt is not a model.*dimms"):
        read_model(folder)
    folder = write(tmp_path, "m", "model.onnx", 'name: "other"')
    with pytest.raises(UnservableModel, match="names the model 'other'"):
        read_model(folder)


def test_a_missing_repository_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnservableModel, match="nowhere cannot be read"):
        model_names(tmp_path / "nowhere")


def test_a_snapshot_changes_with_the_files(tmp_path: Path) -> None:
    folder = write(tmp_path, "m", "model.onnx")
    before = snapshot(folder)
    assert snapshot(folder) == before
    (folder / "1" / "model.onnx").write_bytes(b"new")
    changed = snapshot(folder)
    assert changed != before
    (folder / "1" / "__pycache__").mkdir()
    (folder / "1" / "__pycache__" / "model.pyc").touch()
    assert snapshot(folder) == changed


def test_sizes_in_a_configuration_must_be_numbers() -> None:
    config = pbtxt.parse(
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] reshape { shape: [ 3 ] } } ]'
    )
    assert config["input"][0]["dims"] == [-1, 3]
    assert config["input"][0]["reshape"] == {"shape": [3]}


def test_every_format_names_modules_that_exist() -> None:
    import importlib

    for form in table.FORMATS:
        assert callable(importlib.import_module(form.loader).load)
        assert form.packages
