"""Common code for XGBoost and LightGBM, with tensors and parameters as in Triton's FIL backend."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pytriton.formats.loaded import Array, LoadedFile, TensorInfo, flag, names_of, parameter

INPUT, OUTPUT = "input__0", "output__0"


def framework(name: str) -> Any:
    """Import a framework without letting it import scikit-learn, and return its module.

    If scikit-learn is installed, XGBoost and LightGBM import it for estimators that are not needed here, which takes
    three quarters of their import time. So it is hidden from them, unless it has been imported already.
    """
    if "sklearn" in sys.modules:
        return importlib.import_module(name)
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # makes its import fail
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules["sklearn"]


def trees(
    predict: Callable[[Array], Array], features: int, classes: int, config: Mapping[str, Any]
) -> LoadedFile:
    """Return a loaded model of decision trees.

    Args:
        predict: maps rows to scores with the shape (rows,) or (rows, classes)
        features: number of columns of the input
        classes: number of columns of the scores; 1 for one score per row
        config: the configuration; the parameters `predict_proba`, `output_class` and `threshold` control how scores are
            returned
    """
    proba, output_class = flag(config, "predict_proba"), flag(config, "output_class")
    threshold = float(parameter(config, "threshold", "0.5"))
    output = (names_of(config, "output") or [OUTPUT])[0]
    # The FIL backend's documentation declares an output with one score per row as `dims: [ 1 ]`: then the output has a
    # second axis of size 1.
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
