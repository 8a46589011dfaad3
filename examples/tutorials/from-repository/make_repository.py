"""Write a model repository in Triton's layout: an XGBoost model for the FIL backend, and a model.py."""

from pathlib import Path

import xgboost
from sklearn.datasets import load_breast_cancer

TREES = """\
backend: "fil"
max_batch_size: 1024
dynamic_batching { max_queue_delay_microseconds: 500 }
instance_group [ { count: 2 kind: KIND_CPU } ]
input [ { name: "input__0" data_type: TYPE_FP32 dims: [ 30 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "model_type" value { string_value: "xgboost" } }
"""
LABEL = """\
backend: "python"
max_batch_size: 1024
input [ { name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "label" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
MODEL_PY = '''\
"""Names for scores, written for Triton's python backend."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(one, "output__0")) for one in requests]

    def answer(self, scores):
        names = np.where(scores.as_numpy() > 0.5, b"benign", b"malignant").astype(object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("label", names)])
'''


def write(path: str, text: str) -> Path:
    file = Path("models") / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


values, labels = load_breast_cancer(return_X_y=True)
write("trees/config.pbtxt", TREES)
file = write("trees/1/xgboost.json", "")
settings = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}
xgboost.train(settings, xgboost.DMatrix(values, labels), num_boost_round=20).save_model(file)
write("label/config.pbtxt", LABEL)
write("label/1/model.py", MODEL_PY)
print(*sorted(str(path) for path in Path("models").rglob("*") if path.is_file()), sep="\n")
