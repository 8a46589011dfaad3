import numpy as np

from pytriton.client import ModelClient

with ModelClient("127.0.0.1:8000", "linear") as client:
    print(client.infer_sample(np.array([1, 2, 3], np.float32))["y"])
