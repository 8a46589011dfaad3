"""Classify all 569 tumours in one request."""

import numpy as np
from sklearn.datasets import load_breast_cancer

from pytriton.client import ModelClient

values, labels = load_breast_cancer(return_X_y=True)
with ModelClient("127.0.0.1:8000", "tumours") as client:
    benign = client.infer_batch(np.float32(values))["benign"].ravel()
print(f"{len(benign)} answers, {((benign > 0.5) == labels).mean():.0%} right")
