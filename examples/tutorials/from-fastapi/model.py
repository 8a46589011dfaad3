"""The model. The daemon runs it in two workers and batches waiting requests."""

import numpy as np

import pytriton
from pytriton import ModelConfig, Tensor, batch


def load():
    weights = np.linspace(-1, 1, 4)  # stands for torch.load("model.pt")

    @batch
    def predict(values):
        return {"score": np.tanh(values @ weights)[:, None]}

    return predict


if __name__ == "__main__":
    pytriton.connect().register(
        load,
        "scores",
        inputs=[Tensor(name="values", dtype=np.float32, shape=(4,))],
        outputs=[Tensor(name="score", dtype=np.float32, shape=(1,))],
        config=ModelConfig(max_batch_size=64),
        factory=True,
        instances=2,
        replace=True,
    )
