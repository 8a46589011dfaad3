"""A small classifier of handwritten digits, trained once and cached for all processes and later runs.

Importing scikit-learn takes two seconds of CPU time, so the test processes do not.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import io
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from support.file_cache import cache_folder, remove_unused
from support.models import onnx_files


class Digits(NamedTuple):
    """The classifier in two formats, and digits that it was not trained on.

    Attributes:
        pickled: scikit-learn's MLPClassifier as written by joblib
        onnx: the same, from images (n, 1, 8, 8) to probabilities (n, 10)
        images: (n, 64), from 0 to 1
        labels: the digits on the images
    """

    pickled: bytes
    onnx: bytes
    images: Any
    labels: Any


@functools.lru_cache(maxsize=1)
def digits() -> Digits:
    """Return the cached classifier, or train it if something that it depends on has changed."""
    packages = ("joblib", "numpy", "scikit-learn")
    versions = [sys.version_info[:3], *map(importlib.metadata.version, packages)]
    sources = [Path(file).read_bytes() for file in (__file__, onnx_files.__file__)]
    key = hashlib.sha256(repr((versions, sources)).encode()).hexdigest()[:32]
    folder = cache_folder("digits")
    path = folder / f"{key}.npz"
    if not path.exists():
        _write(_train(), path)
        remove_unused(folder)
    os.utime(path)
    with np.load(path) as kept:
        pickled, onnx = (kept[name].tobytes() for name in ("pickled", "onnx"))
        return Digits(pickled, onnx, kept["images"], kept["labels"])


def _train() -> Digits:
    import joblib
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    images, labels = load_digits(return_X_y=True)
    seen, unseen, seen_labels, unseen_labels = train_test_split(
        images / 16, labels, test_size=0.25, random_state=0, stratify=labels
    )
    trained = MLPClassifier([32], solver="lbfgs", max_iter=100, random_state=0)
    with threadpool_limits(1):  # they spin while they wait, see one_thread.py
        trained.fit(seen, seen_labels)
    pickled = io.BytesIO()
    joblib.dump(trained, pickled)
    onnx = onnx_files.perceptron(trained.coefs_, trained.intercepts_, 64)
    return Digits(pickled.getvalue(), onnx, unseen, unseen_labels)


def _write(made: Digits, path: Path) -> None:
    """Write the file atomically: another process may look for it."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    arrays: dict[str, Any] = {
        name: np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
        for name, value in made._asdict().items()
    }
    with open(new, "wb") as file:
        np.savez(file, **arrays)
    new.rename(path)
