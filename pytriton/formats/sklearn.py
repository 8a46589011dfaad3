"""scikit-learn estimators, saved with joblib or pickle.

The name of an output selects the estimator's method that computes it, such as `predict`, `predict_proba` or `transform`.
For an output with another name, the parameter `method` does; its default is `predict`.

Loading a pickle can run arbitrary code, so model files must be trusted like the code of a registered callable.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pytriton._protocol.arguments import with_article
from pytriton.formats.loaded import Array, FormatError, LoadedFile, TensorInfo, names_of, parameter
from pytriton.model_config.dtypes import to_triton_datatype

_METHODS = ("predict", "predict_proba", "transform", "decision_function", "score_samples")
INPUT = "input__0"


def load(path: str, config: Mapping[str, Any]) -> LoadedFile:
    """Load a file.

    Raises:
        FormatError: the object in it is not an estimator, or lacks a requested method
    """
    estimator = importlib.import_module("joblib").load(path)
    if not any(hasattr(estimator, method) for method in _METHODS):
        raise FormatError(
            f"{path} contains {with_article(type(estimator).__name__)}, which is not an estimator: it has none of the "
            f"methods {', '.join(_METHODS)}"
        )
    wanted = names_of(config, "output") or _default_outputs(estimator)
    methods = {name: _method(estimator, name, config, path) for name in wanted}

    def infer(arrays: dict[str, Array]) -> dict[str, Array]:
        columns = list(arrays.values())
        data = columns[0] if len(columns) == 1 else np.column_stack(columns)
        return {name: _as_array(method(data)) for name, method in methods.items()}

    features = int(getattr(estimator, "n_features_in_", -1))
    inputs = [TensorInfo(INPUT, "FP64", (-1, features))]
    outputs = [
        TensorInfo(name, *_result(estimator, method.__name__)) for name, method in methods.items()
    ]
    said = bool(config.get("input")), bool(config.get("output"))
    # Declared tensors are not compared with the file's: an estimator accepts numbers of any type, in any tensors.
    return LoadedFile(
        None if said[0] else inputs, None if said[1] else outputs, infer, batching=True
    )


def _default_outputs(estimator: Any) -> list[str]:
    if hasattr(estimator, "predict"):
        return [name for name in ("predict", "predict_proba") if hasattr(estimator, name)]
    return [next(name for name in _METHODS if hasattr(estimator, name))]


def _method(estimator: Any, output: str, config: Mapping[str, Any], path: str) -> Any:
    name = output if output in _METHODS else parameter(config, "method", "predict")
    method = getattr(estimator, name, None)
    if not callable(method):
        raise FormatError(
            f"{path}: output {output!r} is computed by the method {name}, which {with_article(type(estimator).__name__)} "
            "lacks. Set the parameter `method`, or name the output after one of the estimator's methods"
        )
    return method


def _as_array(result: Any) -> Array:
    array = np.asarray(result.toarray() if hasattr(result, "toarray") else result)
    if array.dtype.kind == "U":  # class labels that are text
        return np.char.encode(array, "utf-8").astype(object)
    return array


def _result(estimator: Any, method: str) -> tuple[str, tuple[int, ...]]:
    """Return the data type and shape of a method's result; -1 stands for any size."""
    classes = getattr(estimator, "classes_", None)
    if method == "predict":
        return ("FP64" if classes is None else to_triton_datatype(np.asarray(classes).dtype)), (-1,)
    if method == "predict_proba":
        return "FP64", (-1, -1 if classes is None else len(classes))
    return "FP64", (-1, -1) if method == "transform" else (-1,)
