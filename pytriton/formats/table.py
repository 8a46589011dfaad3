"""The formats that workers can serve. Imports no framework: the daemon decides by this table alone.

Names of backends, platforms and default files are Triton's (model_configuration.md, "Model Platform or
Backend", and model_repository.md, "Model Files"); Triton has no scikit-learn backend, so that name is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Format:
    """One format of model files.

    Args:
        title: name of the format in messages
        backend: Triton's backend for it: if tritonserver has it, it serves the model itself
        platforms: values of `platform` in config.pbtxt that may replace `backend`
        files: names of the file (or folder) in a version's folder; the first is the usual one
        loader: module with `load`
        packages: pip packages that it requires: import name -> pip's name
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

#: Triton Python models, which reach workers another way (dispatcher/repository/folder_spec.py).
PYTHON = Format("Python", "python", (), ("model.py",), "", {"numpy": "numpy"})


def backend_of(config: Mapping[str, Any], files: Iterable[str]) -> str:
    """Return the backend that serves a model; "" if unknown.

    Args:
        config: its configuration; may be empty
        files: the files in its version folders
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

    Several formats share one backend (`fil`): then the files decide, or the parameter `model_type`.
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
    """Return the name of the model's file in a version's folder; None if missing."""
    names = set(files)
    named = str(config.get("default_model_filename", ""))
    if named:
        return named if named in names else None
    return next((name for name in form.files if name in names), None)


def missing(form: Format, python: str, lacking: Iterable[str]) -> str:
    """Return a message about packages that an interpreter lacks, with the command that installs them."""
    packages = " ".join(form.packages.get(module, module) for module in lacking)
    return (
        f"{form.title} models need {packages}, which {python} lacks: {python} -m pip install {packages}\n"
        "(or turn on the daemon's setting install_packages)"
    )
