"""One of the models as a BentoML service with its defaults."""

from __future__ import annotations

import json
import os

import bentoml
import models_work

_NAME = json.loads(os.environ["BENCH_MODEL"])["name"]


@bentoml.service
class Served:
    """The service."""

    def __init__(self) -> None:
        self._model = models_work.MODELS[_NAME]()

    @bentoml.api
    def predict(self, text: str) -> dict[str, int]:
        """Call the model."""
        return self._model(text)
