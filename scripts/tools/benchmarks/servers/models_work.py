"""The models of the workload "models", the same in every system: common kinds with random weights, called with a text.

As a newcomer would write them: a class that loads the model, and a method for one request. Each returns the size of its
result, which tells whether the system served the right model.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np

_PIXELS = 224


class MiniLM:
    """Embeds a text with a model of the size of all-MiniLM-L6-v2."""

    def __init__(self) -> None:
        import torch
        import transformers

        torch.manual_seed(0)
        config = transformers.BertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        )
        self._model = transformers.BertModel(config).eval()

    def __call__(self, text: str) -> dict[str, int]:
        """Embed one text."""
        import torch

        tokens = torch.tensor([[101, *(1000 + len(word) for word in text.split()), 102]])
        with torch.inference_mode():
            embedding = self._model(tokens).last_hidden_state.mean(1)[0]
        return {"size": len(embedding.tolist())}


class ResNet50:
    """Classifies an image."""

    def __init__(self) -> None:
        import torch
        import transformers

        torch.manual_seed(0)
        config = transformers.ResNetConfig(num_labels=1000)
        self._model = transformers.ResNetForImageClassification(config).eval()

    def __call__(self, text: str) -> dict[str, int]:
        """Classify 224 x 224 x 3 bytes in base64."""
        import torch

        raw = np.frombuffer(base64.b64decode(text), np.uint8).reshape(1, _PIXELS, _PIXELS, 3)
        image = torch.from_numpy(raw.astype(np.float32) / 255).permute(0, 3, 1, 2)
        with torch.inference_mode():
            scores = self._model(image).logits[0]
        return {"size": len(scores.tolist())}


class LightGBM:
    """Classifies numbers with 300 rounds of trees."""

    def __init__(self) -> None:
        import lightgbm

        classifier = lightgbm.LGBMClassifier(n_estimators=300, verbose=-1)
        self._model = classifier.fit(*_training_data(30))

    def __call__(self, text: str) -> dict[str, int]:
        """Classify 30 numbers."""
        return {"size": len(self._model.predict_proba(_row(text))[0].tolist())}


class Pipeline:
    """Classifies numbers with a pipeline of scikit-learn."""

    def __init__(self) -> None:
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import PolynomialFeatures, StandardScaler

        forest = RandomForestClassifier(n_estimators=20, random_state=0)
        pipeline = make_pipeline(StandardScaler(), PolynomialFeatures(2), forest)
        self._model = pipeline.fit(*_training_data(8))

    def __call__(self, text: str) -> dict[str, int]:
        """Classify 8 numbers."""
        return {"size": len(self._model.predict_proba(_row(text))[0].tolist())}


def _row(text: str) -> Any:
    return np.array([[float(number) for number in text.split()]])


def _training_data(features: int) -> tuple[Any, Any]:
    values = np.random.default_rng(0).normal(size=(2000, features))
    return values, (values[:, 0] > 0).astype(int) + (values[:, 1] > 0.5)


MODELS: dict[str, Callable[[], Callable[[str], dict[str, int]]]] = {
    "minilm": MiniLM,
    "resnet50": ResNet50,
    "lightgbm": LightGBM,
    "pipeline": Pipeline,
}
