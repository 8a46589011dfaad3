"""The loaders of model files with real files, and the configurations that they complete."""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.models import onnx_files
from support.models.digits import digits

from pytriton._protocol.parameters import VERSION_PARAMETER
from pytriton.formats import complete, probe, table
from pytriton.formats.loaded import FormatError, LoadedFile
from pytriton.formats.model import FolderModel, load_file
from pytriton.formats.pytorch import in_order
from pytriton.formats.recipe import Recipe
from pytriton.formats.trees import framework, trees
from pytriton.proxy.types import Request


def load(title: str, path: Path, config: dict[str, Any] | None = None) -> LoadedFile:
    form = next(one for one in table.FORMATS if one.title == title)
    for module in form.packages:
        pytest.importorskip(module)
    return load_file(title, form.loader, str(path), config or {})


@pytest.fixture
def affine(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_files.affine(2.0))
    return path


def test_onnx_files_declare_everything(affine: Path) -> None:
    loaded = load("ONNX", affine)
    config = complete.complete({}, loaded, "model.onnx")
    assert config == {
        "max_batch_size": complete.DEFAULT_MAX_BATCH_SIZE,
        "dynamic_batching": {},
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
    }
    answer = loaded.infer({"x": np.ones((2, 4), np.float32)})
    assert answer["y"].tolist() == [[2.0] * 4] * 2


def test_fields_of_config_pbtxt_are_kept(affine: Path) -> None:
    loaded = load("ONNX", affine)
    said = {"max_batch_size": 0, "output": [{"name": "y", "label_filename": "labels.txt"}]}
    config = complete.complete(said, loaded, "model.onnx")
    assert config["max_batch_size"] == 0
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4]}]
    assert config["output"][0]["label_filename"] == "labels.txt"
    assert config["output"][0]["dims"] == [-1, 4]
    assert complete.is_complete(config)
    assert not complete.is_complete(said)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"input": [{"name": "z"}]}, "has an input 'z', but .* its inputs are x"),
        (
            {"output": [{"name": "y", "data_type": "TYPE_FP64", "dims": [4]}]},
            "output 'y' has the data type FP64 in the configuration, but FP32 in",
        ),
    ],
)
def test_a_configuration_that_contradicts_the_file_is_refused(
    affine: Path, config: dict[str, Any], text: str
) -> None:
    with pytest.raises(FormatError, match=text):
        complete.complete(config, load("ONNX", affine), "model.onnx")


def test_onnx_text_goes_in_and_out(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = (onnx_files.STRING, ["n"])
    path.write_bytes(
        onnx_files.model([onnx_files.node("Identity", ["t"], ["u"])], {"t": text}, {"u": text})
    )
    loaded = load("ONNX", path)
    assert loaded.inputs is not None
    assert loaded.inputs[0].datatype == "BYTES"
    answer = loaded.infer({"t": np.array(["grün".encode(), b""], np.object_)})
    assert answer["u"].tolist() == ["grün", ""]


@pytest.mark.programs
def test_scikit_learn_has_outputs_by_its_methods(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    _, _, images, labels = made = digits()
    path = tmp_path / "model.joblib"
    path.write_bytes(made.pickled)
    loaded = load("scikit-learn", path)
    config = complete.complete({}, loaded, str(path))
    assert config["input"] == [{"name": "input__0", "data_type": "TYPE_FP64", "dims": [64]}]
    assert config["output"] == [
        {"name": "predict", "data_type": "TYPE_INT64", "dims": [1], "reshape": {"shape": []}},
        {"name": "predict_proba", "data_type": "TYPE_FP64", "dims": [10]},
    ]
    answer = loaded.infer({"input__0": images})
    assert (answer["predict"] == labels).mean() > 0.9
    named = {
        "output": [{"name": "scores"}],
        "parameters": {"method": {"string_value": "predict_proba"}},
    }
    scores = load("scikit-learn", path, named).infer({"a": images[:, :30], "b": images[:, 30:]})
    assert np.array_equal(scores["scores"], answer["predict_proba"])
    named["parameters"] = {"method": {"string_value": "transform"}}
    with pytest.raises(FormatError, match=r"the method transform, which an MLPClassifier lacks"):
        load("scikit-learn", path, named)


@pytest.mark.programs
def test_scikit_learn_labels_may_be_text(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    neighbors = importlib.import_module("sklearn.neighbors")
    model = neighbors.KNeighborsClassifier(1).fit([[0.0], [1.0]], ["nein", "ja"])
    path = tmp_path / "model.pkl"
    joblib.dump(model, path)
    loaded = load("scikit-learn", path)
    assert complete.complete({}, loaded, "m")["output"][0]["data_type"] == "TYPE_STRING"
    assert loaded.infer({"x": np.array([[0.1], [0.9]])})["predict"].tolist() == [b"nein", b"ja"]


@pytest.mark.programs
def test_a_file_without_an_estimator_is_reported(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    joblib.dump({"weights": 1}, tmp_path / "model.joblib")
    with pytest.raises(
        FormatError,
        match="contains a dict, which is not an estimator: it has none of the methods predict",
    ):
        load("scikit-learn", tmp_path / "model.joblib")


def trees_of(title: str, folder: Path, rows: Any, labels: Any) -> Path:
    """Train a few trees and write them in one of the formats."""
    if title == "XGBoost":
        xgboost = pytest.importorskip("xgboost")
        settings = {"objective": "multi:softprob", "num_class": 10, "max_depth": 3}
        booster = xgboost.train(settings, xgboost.DMatrix(rows, labels), num_boost_round=8)
        path = folder / "xgboost.json"
    else:
        lightgbm = pytest.importorskip("lightgbm")
        settings = {"objective": "multiclass", "num_class": 10, "verbose": -1, "num_leaves": 8}
        booster = lightgbm.train(settings, lightgbm.Dataset(rows, labels), num_boost_round=8)
        path = folder / "model.txt"
    booster.save_model(str(path))
    return path


@pytest.mark.programs
@pytest.mark.parametrize("title", ["XGBoost", "LightGBM"])
def test_trees_give_scores_or_classes(title: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    _, _, images, labels = digits()
    path = trees_of(title, tmp_path, images.astype(np.float32), labels)
    loaded = load(title, path)
    config = complete.complete({}, loaded, str(path))
    assert config["input"] == [{"name": "input__0", "data_type": "TYPE_FP32", "dims": [64]}]
    assert config["output"] == [{"name": "output__0", "data_type": "TYPE_FP32", "dims": [10]}]
    rows = {"input__0": images[:50].astype(np.float32)}
    scores = loaded.infer(rows)["output__0"]
    assert scores.shape == (50, 10)
    assert (scores.argmax(axis=1) == labels[:50]).mean() > 0.8
    as_class = {"parameters": {"output_class": {"string_value": "true"}}}
    classes = load(title, path, as_class).infer(rows)["output__0"]
    assert np.array_equal(classes, scores.argmax(axis=1))


@pytest.mark.parametrize("is_there", [True, False])
def test_boosters_use_scikit_learn_only_if_it_is_installed(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "boosting_here.py").write_text(
        "try:\n    import sklearn\nexcept ImportError:\n    sklearn = None\n"
    )
    (tmp_path / "sklearn.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    there = ModuleType("sklearn") if is_there else None
    monkeypatch.delitem(sys.modules, "boosting_here", raising=False)
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    if there is not None:
        monkeypatch.setitem(sys.modules, "sklearn", there)
    assert framework("boosting_here").sklearn is there
    assert sys.modules.get("sklearn") is there
    assert is_there or "sklearn" not in sys.modules


def test_one_score_per_row_has_the_declared_axes() -> None:
    """Triton's documents declare `dims: [ 1 ]`; a file itself declares none."""
    one = {"name": "output__0", "data_type": "TYPE_FP32"}
    rows = {"input__0": np.zeros((3, 2), np.float32)}
    for config, shape in (({}, (3,)), ({"output": [{**one, "dims": [1]}]}, (3, 1))):
        loaded = trees(lambda data: data.sum(axis=1), 2, 1, config)
        assert loaded.infer(rows)["output__0"].shape == shape


def test_pytorch_tensors_are_ordered_as_in_triton() -> None:
    assert in_order(["b", "a"], ["a", "b"]) == ["a", "b"]
    assert in_order(["INPUT__1", "INPUT__0"], ["x"]) == ["INPUT__0", "INPUT__1"]
    assert in_order(["second", "first"], ["x", "y"]) == ["second", "first"]
    with pytest.raises(FormatError, match="same number after '__'"):
        in_order(["a__0", "b__0"], [])


def test_a_missing_package_is_reported_with_the_pip_command() -> None:
    form = next(one for one in table.FORMATS if one.title == "scikit-learn")
    text = table.missing(form, "/venv/bin/python", ["sklearn", "joblib"])
    assert "/venv/bin/python -m pip install scikit-learn joblib" in text


def test_the_probe_answers_or_reports_why_not(affine: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    question = {
        "title": "ONNX",
        "loader": "pytriton.formats.onnx",
        "path": str(affine),
        "config": {},
    }
    assert probe.answer(question)["config"]["input"][0]["name"] == "x"
    (tmp_path / "bad.onnx").write_bytes(b"nothing of the kind")
    said = probe.answer({**question, "path": str(tmp_path / "bad.onnx")})["error"]
    assert said.startswith(f"{tmp_path / 'bad.onnx'} cannot be loaded")


def test_versions_and_shapes_of_a_folder_model_are_answered_separately(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    files = {}
    for version in (1, 2):
        files[version] = str(tmp_path / f"{version}.onnx")
        Path(files[version]).write_bytes(onnx_files.affine(float(version), ("n", "m")))
    config = {
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
    serve = FolderModel(Recipe("m", "ONNX", "pytriton.formats.onnx", config, files))
    asked = [("1", 2), ("2", 3), ("", 2), ("1", 2), ("1", 3)]
    requests = [
        Request(
            {"x": np.full((2, width), index, np.float32)},
            {VERSION_PARAMETER: version} if version else {},
        )
        for index, (version, width) in enumerate(asked)
    ]
    answers = serve(requests)
    for index, (asked_for, width) in enumerate(asked):
        factor = int(asked_for or 2)
        assert answers[index]["y"].tolist() == [[float(index * factor)] * width] * 2


def test_the_version_parameter_is_ignored_for_a_single_version(tmp_path: Path) -> None:
    """Proxies set it only for several versions; otherwise it means nothing and must not fail."""
    pytest.importorskip("onnxruntime")
    path = tmp_path / "1.onnx"
    path.write_bytes(onnx_files.affine(2.0, ("n", "m")))
    config = {
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
    serve = FolderModel(Recipe("m", "ONNX", "pytriton.formats.onnx", config, {1: str(path)}))
    x = np.ones((1, 2), np.float32)
    requests = [Request({"x": x}, {VERSION_PARAMETER: given}) for given in ("9", 9, "", "1")]
    assert [answer["y"].tolist() for answer in serve(requests)] == [[[2.0, 2.0]]] * 4


def test_a_recipe_travels_by_name_only() -> None:
    recipe = Recipe("m", "ONNX", "pytriton.formats.onnx", {}, {1: "/m/1/model.onnx"})
    payload = recipe.payload()
    assert b"pytriton.formats.recipe" in io.BytesIO(payload).read()
    assert b"onnxruntime" not in payload


@pytest.mark.programs
def test_results_are_not_cast_lossily(tmp_path: Path) -> None:
    """The worker validates and casts results; a cast in the loader would truncate fractions."""
    joblib = pytest.importorskip("joblib")
    linear = importlib.import_module("sklearn.linear_model")
    path = tmp_path / "model.joblib"
    joblib.dump(linear.LinearRegression().fit([[0.0], [1.0]], [0.5, 2.0]), path)
    config = {
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP64", "dims": [1]}],
        "output": [
            {"name": "predict", "data_type": "TYPE_INT64", "dims": [1], "reshape": {"shape": []}}
        ],
    }
    recipe = Recipe("m", "scikit-learn", "pytriton.formats.sklearn", config, {1: str(path)})
    (answer,) = FolderModel(recipe)([Request({"x": np.array([[0.0]])})])
    np.testing.assert_allclose(answer["predict"], [0.5])
