"""Articles before names that only run time tells."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import pytriton
from pytriton._protocol.words import with_article
from pytriton.formats import table


@pytest.mark.parametrize(
    "right",
    [
        "an ONNX", "a PyTorch", "a TensorFlow SavedModel", "a scikit-learn", "an XGBoost", "a LightGBM",
        "an int", "an object", "a str", "a uint8", "a Union", "an ndarray", "an OSError", "a _thread.lock",
        "an io.TextIOWrapper", "an MLPClassifier", "a PCA", "an SVC", "a KMeans", "an IsolationForest", "a user",
    ],
)  # fmt: skip
def test_article(right: str) -> None:
    assert with_article(right.partition(" ")[2]) == right


def test_every_format_has_been_thought_of() -> None:
    said = {with_article(one.title) for one in table.FORMATS}
    assert said == {
        "an ONNX", "a PyTorch", "a TensorFlow SavedModel", "a scikit-learn", "an XGBoost", "a LightGBM",
    }  # fmt: skip


def test_no_message_has_an_article_before_a_types_name() -> None:
    """The class of mistakes: "a {type(x).__name__}" is "a int" one day."""
    wrong = re.compile(r"\b[Aa]n? \{(type\(|\w+\.(__name__|__qualname__|title)\})")
    looked_at = set()
    for folder, _, files in os.walk(next(iter(pytriton.__path__)), followlinks=True):
        # As in a checkout.
        for file in (Path(folder, name) for name in files if name.endswith(".py")):
            assert not wrong.search(file.read_text()), file
            looked_at.add(file.parent.name)
    assert {"pytriton", "dispatcher", "worker", "formats"} <= looked_at
