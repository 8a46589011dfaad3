"""XGBoost boosters, from JSON, UBJSON and older binary files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytriton.formats.loaded import Array, LoadedFile
from pytriton.formats.trees import framework, trees


def load(path: str, config: Mapping[str, Any]) -> LoadedFile:
    """Load a file. `trees.trees` describes the parameters in `config`."""
    xgboost = framework("xgboost")
    booster = xgboost.Booster(model_file=path)
    learner = json.loads(booster.save_config())["learner"]
    classes = int(learner["learner_model_param"].get("num_class", 0))

    def predict(rows: Array) -> Array:
        scores: Array = booster.inplace_predict(rows)
        return scores

    # With multi:softmax, a row's prediction is a label; with multi:softprob, a score for each class.
    columns = classes if learner["objective"]["name"] == "multi:softprob" else 1
    return trees(predict, booster.num_features(), columns, config)
