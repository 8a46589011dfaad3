"""Train two classifiers of handwritten digits and write them as a model repository in Triton's layout.

    python examples/runner/make_repository.py models

`digits_mlp` is a scikit-learn model without a config.pbtxt: its file declares inputs and outputs. `digits_trees` is a
LightGBM model with a config.pbtxt; it is skipped if lightgbm is not installed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import joblib
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

TREES = """
backend: "fil"
max_batch_size: 64
dynamic_batching {}
input [ { name: "image" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] } ]
parameters { key: "model_type" value { string_value: "lightgbm" } }
"""


def digits() -> Any:
    """Return (training images, held-out images, training labels, held-out labels); pixels are 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    return train_test_split(images / 16, labels, test_size=0.25, random_state=0, stratify=labels)


def main(repository: Path) -> None:
    """Write the models."""
    training, held_out, labels, held_out_labels = digits()
    classifier = MLPClassifier([32], solver="lbfgs", max_iter=100, random_state=0)
    classifier.fit(training, labels)
    folder = repository / "digits_mlp" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    joblib.dump(classifier, folder / "model.joblib")
    print(f"digits_mlp: accuracy {classifier.score(held_out, held_out_labels):.3f}")
    if importlib.util.find_spec("lightgbm") is None:
        return
    import lightgbm

    settings = {"objective": "multiclass", "num_class": 10, "verbose": -1, "num_leaves": 8}
    booster = lightgbm.train(settings, lightgbm.Dataset(training, labels), num_boost_round=20)
    folder = repository / "digits_trees" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    booster.save_model(str(folder / "model.txt"))
    (folder.parent / "config.pbtxt").write_text(TREES)
    hits = booster.predict(held_out).argmax(axis=1) == held_out_labels
    print(f"digits_trees: accuracy {hits.mean():.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "models"))
