"""Send requests to both models with NVIDIA's client."""

import numpy as np
import tritonclient.http as triton
from sklearn.datasets import load_breast_cancer

values, labels = load_breast_cancer(return_X_y=True)
client = triton.InferenceServerClient("127.0.0.1:8000")
tensor = triton.InferInput("input__0", [3, 30], "FP32")
tensor.set_data_from_numpy(np.float32(values[[0, 1, 19]]))
scores = client.infer("trees", [tensor]).as_numpy("output__0").reshape(3, 1)
tensor = triton.InferInput("output__0", [3, 1], "FP32")
tensor.set_data_from_numpy(scores)
print(*(name.decode() for name in client.infer("label", [tensor]).as_numpy("label").ravel()))
