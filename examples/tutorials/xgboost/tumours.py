"""A declared model: `pytriton-daemon register tumours:Tumours` registers it."""

from pathlib import Path

import numpy as np

from pytriton import ModelConfig, Tensor, batch, declare

FILE = Path(__file__).parent.resolve() / "tumours.ubj"


@declare(
    name="tumours",
    inputs=[Tensor(name="values", dtype=np.float32, shape=(30,))],
    outputs=[Tensor(name="benign", dtype=np.float32, shape=(1,))],
    config=ModelConfig(max_batch_size=1024),
)
class Tumours:
    """The trees. Each worker creates one instance."""

    def __init__(self):
        import xgboost

        self.trees = xgboost.Booster(model_file=FILE)
        self.trees.set_param("nthread", 1)

    @batch
    def __call__(self, values):
        return {"benign": self.trees.inplace_predict(values)[:, None]}
