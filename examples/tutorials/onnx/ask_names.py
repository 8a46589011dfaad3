"""Get the words for five pictures."""

import numpy as np
from sklearn.datasets import load_digits

from pytriton.client import ModelClient

with ModelClient("127.0.0.1:8000", "names") as client:
    words = client.infer_batch(np.uint8(load_digits().images[:5]))["word"]
print(*(word.decode() for word in words.ravel()))
