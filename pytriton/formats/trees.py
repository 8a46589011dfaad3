"""Common code of XGBoost and LightGBM: tensors and parameters as in Triton's FIL backend."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pytriton.formats.loaded import Array, LoadedFile, TensorInfo, flag, names_of, parameter

INPUT, OUTPUT = "input__0", "output__0"


def framework(name: str) -> Any:
    """Return a framework's module, imported without scikit-learn.

    If scikit-learn is installed, XGBoost and LightGBM import it for their own estimators, which boosters do not need:
    that takes three quarters of the import time. If it is imported already, they use it.
    """
    if "sklearn" in sys.modules:
        return importlib.import_module(name)
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # pretend that it is not installed
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules["sklearn"]


def trees(
    predict: Callable[[Array], Array], features: int, classes: int, config: Mapping[str, Any]
) -> LoadedFile:
    """Return a model of trees.

    Args:
        predict: maps rows to scores: (rows,), or (rows, classes)
        features: number of input columns
        classes: columns of `predict`; 1 for one score per row
        config: its parameters `predict_proba`, `output_class` and `threshold` control how scores are returned
    """
    proba, output_class = flag(config, "predict_proba"), flag(config, "output_class")
    threshold = float(parameter(config, "threshold", "0.5"))
    output = (names_of(config, "output") or [OUTPUT])[0]
    # The FIL backend's documents declare one score per row with `dims: [ 1 ]`; without it, a row is one
    # number.
    column = any(len(one.get("dims", ())) == 1 for one in config.get("output", ())[:1])

    def infer(arrays: dict[str, Array]) -> dict[str, Array]:
        scores = predict(next(iter(arrays.values())))
        if proba and scores.ndim == 1:
            scores = np.column_stack([1 - scores, scores])
        elif output_class and not proba:
            scores = scores.argmax(axis=1) if scores.ndim > 1 else scores > threshold
        return {output: scores[:, None] if column and scores.ndim == 1 else scores}

    columns = max(2, classes) if proba else 1 if output_class else classes
    inputs = [TensorInfo(INPUT, "FP32", (-1, features))]
    outputs = [TensorInfo(OUTPUT, "FP32", (-1, columns) if columns > 1 else (-1,))]
    return LoadedFile(
        None if config.get("input") else inputs,
        None if config.get("output") else outputs,
        infer,
        batching=True,
    )
