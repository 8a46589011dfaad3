"""LightGBM boosters, from text files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton.formats.loaded import Array, LoadedFile
from pytriton.formats.trees import framework, trees


def load(path: str, config: Mapping[str, Any]) -> LoadedFile:
    """Load a file. `trees.trees` describes the parameters in `config`."""
    booster = framework("lightgbm").Booster(model_file=path)

    def predict(rows: Array) -> Array:
        scores: Array = booster.predict(rows)
        return scores

    columns = int(booster.num_model_per_iteration())
    return trees(predict, int(booster.num_feature()), columns, config)
