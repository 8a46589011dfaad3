"""Tables of the model file formats that workers can serve, and of the other tools whose models they can serve.

Names of backends, platforms and default files are Triton's (model_configuration.md, "Model Platform or
Backend", and model_repository.md, "Model Files"), except for scikit-learn, for which Triton has no backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Format:
    """One format of model files.

    Args:
        title: name of the format in error texts
        backend: Triton's backend for the format; if tritonserver has that backend, it serves such models itself
        platforms: values of `platform` in config.pbtxt that select the format instead of `backend`
        files: possible names of the file (or folder) in a version's folder, the usual one first
        loader: module whose `load` loads such a file
        packages: the Python packages that it requires: name of the module -> name of the package for pip
    """

    title: str
    backend: str
    platforms: tuple[str, ...]
    files: tuple[str, ...]
    loader: str
    packages: Mapping[str, str]


FORMATS: tuple[Format, ...] = (
    Format(
        "ONNX",
        "onnxruntime",
        ("onnxruntime_onnx",),
        ("model.onnx",),
        "pytriton.formats.onnx",
        {"onnxruntime": "onnxruntime"},
    ),
    Format(
        "PyTorch",
        "pytorch",
        ("pytorch_libtorch", "torch_aoti"),
        ("model.pt", "model.pt2"),
        "pytriton.formats.pytorch",
        {"torch": "torch"},
    ),
    Format(
        "TensorFlow SavedModel",
        "tensorflow",
        ("tensorflow_savedmodel",),
        ("model.savedmodel",),
        "pytriton.formats.tensorflow",
        {"tensorflow": "tensorflow"},
    ),
    Format(
        "scikit-learn",
        "sklearn",
        (),
        ("model.joblib", "model.pkl", "model.pickle"),
        "pytriton.formats.sklearn",
        {"sklearn": "scikit-learn", "joblib": "joblib"},
    ),
    Format(
        "XGBoost",
        "fil",
        (),
        ("xgboost.json", "xgboost.ubj", "xgboost.model"),
        "pytriton.formats.xgboost",
        {"xgboost": "xgboost"},
    ),
    Format(
        "LightGBM",
        "fil",
        (),
        ("model.txt",),
        "pytriton.formats.lightgbm",
        {"lightgbm": "lightgbm"},
    ),
)


@dataclass(frozen=True)
class Tool:
    """Another tool whose models are served as typed functions; a target names one as `SCHEME:LOCATION`.

    Args:
        scheme: what stands before the colon
        form: form of a target, for messages
        title: name of the tool in messages
        loader: module with `open_model`
        packages: pip packages that it requires: import name -> pip's name
    """

    scheme: str
    form: str
    title: str
    loader: str
    packages: Mapping[str, str]


TOOLS: tuple[Tool, ...] = (
    Tool("mlflow", "mlflow:PATH", "MLflow", "pytriton.formats.mlflow", {"mlflow": "mlflow"}),
    Tool(
        "hf",
        "hf:TASK=PATH",
        "Transformers",
        "pytriton.formats.transformers",
        {"transformers": "transformers", "torch": "torch"},
    ),
    Tool(
        "sentence-transformers",
        "sentence-transformers:PATH",
        "Sentence Transformers",
        "pytriton.formats.sentence_transformers",
        {"sentence_transformers": "sentence-transformers"},
    ),
    # No required packages: a handler may import any, though most need torch and torchserve.
    Tool("torchserve", "torchserve:FILE.mar", "TorchServe", "pytriton.formats.torchserve", {}),
    Tool(
        "litserve",
        "litserve:FILE.py:API",
        "LitServe",
        "pytriton.formats.litserve",
        {"litserve": "litserve"},
    ),
)

#: Triton Python models. They have no loader here: see dispatcher/repository/folder_spec.py.
PYTHON = Format("Python", "python", (), ("model.py",), "", {"numpy": "numpy"})


def backend_of(config: Mapping[str, Any], files: Iterable[str]) -> str:
    """Return the name of the Triton backend that serves a model; "" if unknown.

    Args:
        config: the model's configuration; may be empty
        files: names of the files in its version folders
    """
    if config.get("backend"):
        return str(config["backend"])
    platform = str(config.get("platform", ""))
    if platform:
        known = {name: one.backend for one in FORMATS for name in one.platforms}
        return {"tensorflow_graphdef": "tensorflow", "tensorrt_plan": "tensorrt", **known}.get(
            platform, platform
        )
    names = set(files)
    if "model.py" in names:
        return "python"
    return next((one.backend for one in FORMATS if names.intersection(one.files)), "")


def format_of(config: Mapping[str, Any], files: Iterable[str]) -> Format | None:
    """Return the format of a model; None if workers cannot serve it.

    If several formats share a backend, as XGBoost and LightGBM share `fil`, the parameter `model_type` decides, or the
    names of the files.
    """
    names = set(files)
    backend = backend_of(config, names)
    if config.get("platform") == "tensorflow_graphdef":
        return None
    candidates = [one for one in FORMATS if one.backend == backend]
    kind = str(config.get("parameters", {}).get("model_type", {}).get("string_value", ""))
    for one in candidates:
        if kind and kind.startswith(one.title.lower()):
            return one
    by_file = [one for one in candidates if names.intersection(one.files)]
    if by_file:
        return by_file[0]
    return candidates[0] if len(candidates) == 1 else None


def file_name(form: Format, config: Mapping[str, Any], files: Iterable[str]) -> str | None:
    """Return the name of the model's file among the files in a version's folder; None if it is missing."""
    names = set(files)
    named = str(config.get("default_model_filename", ""))
    if named:
        return named if named in names else None
    return next((name for name in form.files if name in names), None)


def tool_of(target: object) -> tuple[Tool, str] | None:
    """Return the tool that a target such as `mlflow:PATH` names, and the location; None for other targets."""
    if not isinstance(target, str):
        return None
    scheme, _, location = target.partition(":")
    return next(((tool, location) for tool in TOOLS if tool.scheme == scheme and location), None)


def missing(form: Format, python: str, lacking: Iterable[str]) -> str:
    """Return an error text about modules that an interpreter lacks, with the command that installs their packages."""
    packages = " ".join(form.packages.get(module, module) for module in lacking)
    return (
        f"{form.title} models need {packages}, which {python} lacks: {python} -m pip install {packages}\n"
        "(or turn on the daemon's setting install_packages)"
    )
