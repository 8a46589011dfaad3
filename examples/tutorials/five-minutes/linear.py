import numpy as np

import pytriton
from pytriton import ModelConfig, Tensor, batch, declare


@declare(
    inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
    outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,))],
    config=ModelConfig(max_batch_size=64),
    instances=2,
)
@batch
def linear(x):
    return {"y": 2 * x + 1}


if __name__ == "__main__":
    model = pytriton.connect().register(linear, replace=True)
    print(model.url)
