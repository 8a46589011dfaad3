"""A declared model for every node."""

import numpy as np

from pytriton import ModelConfig, Tensor, batch, declare


@declare(
    inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
    outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,))],
    config=ModelConfig(max_batch_size=64),
)
@batch
def linear(x):
    return {"y": 2 * x + 1}
