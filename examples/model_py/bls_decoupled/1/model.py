"""Calls the decoupled model square_decoupled, and adds up its answers."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Makes a call with many responses."""

    def execute(self, requests):
        """Add up the answers for each request."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Add up the answers for one request."""
        call = pb_utils.InferenceRequest(
            model_name="square_decoupled",
            requested_output_names=["OUT"],
            inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
        )
        total = count = 0
        for answer in call.exec(decoupled=True):
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            if len(answer.output_tensors()) > 0:
                total += int(pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy()[0])
                count += 1
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("SUM", np.array([total], np.int32)),
                pb_utils.Tensor("COUNT", np.array([count], np.int32)),
            ]
        )
