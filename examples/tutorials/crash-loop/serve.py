"""Register a model that needs a file: weights.npy."""

from pathlib import Path

import numpy as np

import pytriton
from pytriton import Tensor, batch

FILE = Path(__file__).parent.resolve() / "weights.npy"


def load():
    weights = np.load(FILE)

    @batch
    def infer(x):
        return {"y": x * weights}

    return infer


if __name__ == "__main__":
    np.save(FILE, np.float32([1, 2, 3]))
    pytriton.connect().register(
        load,
        "weighted",
        inputs=[Tensor(name="x", dtype=np.float32, shape=(3,))],
        outputs=[Tensor(name="y", dtype=np.float32, shape=(3,))],
        factory=True,
        replace=True,
    )
