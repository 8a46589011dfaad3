"""The model in a process of its own, at the same address."""

import numpy as np

from pytriton import HTTPError

weights = np.linspace(-1, 1, 4)  # stands for torch.load("model.pt")


def predict(values: list[float]) -> dict[str, float]:
    if len(values) != 4:
        raise HTTPError(422, "a request has 4 values")
    return {"score": np.tanh(np.array(values) @ weights)}
