"""Classify five images."""

import numpy as np
from sklearn.datasets import load_digits

from pytriton.client import ModelClient

images, labels = load_digits(return_X_y=True)
with ModelClient("127.0.0.1:8000", "digits") as client:
    answer = client.infer_batch(np.float32(images[:5] / 16))
print("served", answer["digit"].ravel())
print("labels", labels[:5])
