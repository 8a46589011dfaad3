"""Models for tritonserver's own Python backend: one that answers many times, and one that answers once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.plain_triton import PlainTriton, plain_triton

TENSORS = """
input [ { name: "count", data_type: TYPE_INT32, dims: [1] } ]
output [
  { name: "number", data_type: TYPE_INT32, dims: [1] },
  { name: "told", data_type: TYPE_STRING, dims: [1] }
]
backend: "python"
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
#: Answers `count` times; waits before an answer while the file "wait" of its folder is there.
CODE = """
import json, os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FOLDER = {folder!r}

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        count = int(pb_utils.get_input_tensor_by_name(request, "count").as_numpy().reshape(-1)[0])
        shape = pb_utils.get_input_tensor_by_name(request, "count").as_numpy().shape
        told = np.full(shape, request.parameters().encode(), object)
        for number in range(abs(count)):
            while os.path.exists(FOLDER + "/wait") and number and not request.is_cancelled():
                time.sleep(0.01)
            if request.is_cancelled():
                open(FOLDER + "/cancelled", "w").close()
                break
            with open(FOLDER + "/sent", "w") as sent:
                sent.write(str(number))
            tensors = [
                pb_utils.Tensor("number", np.full(shape, number, np.int32)),
                pb_utils.Tensor("told", told),
            ]
            sender.send(pb_utils.InferenceResponse(tensors))
        if count < 0:
            error = pb_utils.TritonError("no negative counts")
            sender.send(pb_utils.InferenceResponse(error=error))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
#: The same tensors, one answer.
COUPLED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        count = [pb_utils.get_input_tensor_by_name(one, "count").as_numpy() for one in requests]
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("number", one), pb_utils.Tensor("told", one.astype(bytes))]
            )
            for one in count
        ]
"""


@contextmanager
def counting_triton(folder: Path, files: Path) -> Iterator[PlainTriton]:
    """Serve "count", the same without batching as "plain", and "coupled"; `files` contains the modules of CODE.

    Clients may load and unload models, with an access token.
    """
    code = CODE.replace("{folder!r}", repr(str(files)))
    models = {
        "count": (f"max_batch_size: 4 {TENSORS} {DECOUPLED}", code),
        "plain": (f"max_batch_size: 0 {TENSORS} {DECOUPLED}", code),
        "coupled": (f"max_batch_size: 4 {TENSORS}", COUPLED),
    }
    options = [
        "--model-control-mode=explicit",
        "--load-model=*",
        "--http-restricted-api=model-repository:triton-access-token=secret",
        "--grpc-restricted-protocol=model-repository:triton-access-token=secret",
        "--grpc-header-forward-pattern=x-.*",
    ]
    with plain_triton(folder, models, options) as running:
        yield running
