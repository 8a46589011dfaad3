"""Classify five images, and compare with ONNX Runtime in this process."""

import numpy as np
import onnxruntime
from sklearn.datasets import load_digits

from pytriton.client import ModelClient

images = np.float32(load_digits().data[:5] / 16)
with ModelClient("127.0.0.1:8000", "digits") as client:
    served = client.infer_batch(images)
local = onnxruntime.InferenceSession("models/digits/1/model.onnx").run(None, {"image": images})
print("digits", served["label"].ravel())
print("the same probabilities:", np.allclose(served["probabilities"], local[1], atol=1e-6))
