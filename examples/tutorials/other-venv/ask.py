"""Send a request to the model in the other environment."""

import numpy as np

from pytriton.client import ModelClient

with ModelClient("127.0.0.1:8000", "versions") as client:
    answer = client.infer_sample(np.array([21], np.float32))
print(answer["y"].item(), answer["ran_in"].item().decode())
