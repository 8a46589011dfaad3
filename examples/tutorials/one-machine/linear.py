"""A declared model: `pytriton-daemon register linear:linear` registers it."""

import numpy as np

from pytriton import Limits, ModelConfig, Tensor, batch, declare


@declare(
    inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
    outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,))],
    config=ModelConfig(max_batch_size=64),
    instances=2,
    execution_timeout_s=10,
    limits=Limits(recycle_above="2GiB"),
)
@batch
def linear(x):
    return {"y": 2 * x + 1}
