"""A BentoML service in front of a model repository.

python examples/runner/make_repository.py models          # needs scikit-learn
pip install bentoml .
MODELS=models bentoml serve --working-dir examples/bentoml service:Digits

curl localhost:3000/classify -H 'Content-Type: application/json' -d '{"model": "digits_mlp", "pixels": [0, 0, 5, ...]}'

BentoML and the models can have different environments: MODEL_PYTHON=/path/to/venv/bin/python sets the interpreter of
the models' workers.
"""

from __future__ import annotations

import os

import bentoml
import numpy as np

from pytriton.exceptions import ModelNotFoundError
from pytriton.runner import Runner, RunnerArgumentError


# One BentoML worker is enough, because it only forwards requests; instance_group sets the number of the models' workers.
# Several BentoML workers can share one daemon: run `pytriton-daemon start --model-repository models`, and write
# Runner("digits", daemon=pytriton.connect()).
@bentoml.service(workers=1, traffic={"timeout": 60})
class Digits:
    """Classify the digit in an image with any model of the repository."""

    def __init__(self) -> None:
        self.runner = Runner(
            "digits",
            model_repository=os.environ.get("MODELS", "models"),
            settings={"model_python": os.environ.get("MODEL_PYTHON")},
        )
        self.runner.init_local()  # models are loaded before the service reports that it is ready

    @bentoml.api
    async def classify(self, model: str, pixels: list[float]) -> dict[str, int]:
        """Return the digit in an image of 64 pixels, 0 to 1."""
        try:
            result = await self.runner[model].async_run(np.array(pixels))
        except ModelNotFoundError as error:
            raise bentoml.exceptions.NotFound(str(error)) from error
        except RunnerArgumentError as error:
            raise bentoml.exceptions.InvalidArgument(str(error)) from error
        scores = result.as_numpy("scores" if "scores" in result.outputs else "predict_proba")
        return {"digit": int(scores.argmax())}

    @bentoml.api
    async def unload(self, model: str) -> dict[str, str]:
        """Take a model out of service, as in BentoML's guide."""
        await self.runner.unload_model(model)
        return {"unloaded": model}

    @bentoml.on_shutdown
    def close(self) -> None:
        """Stop the models with the service."""
        self.runner.close()
