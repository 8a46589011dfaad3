"""Adds up the numbers of each sequence, which it identifies by the control tensors that Triton adds."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Keeps a state for each sequence."""

    def initialize(self, args):
        """Start without sequences."""
        self.sums = {}

    def execute(self, requests):
        """Answer each request."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Add the number, and forget the sequence at its end."""
        value, start, end, key = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]
            for name in ("IN", "START", "END", "CORRID")
        )
        if int(key) != request.correlation_id():
            error = f"the control tensor says {key}, the request {request.correlation_id()}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(error))
        if start:
            self.sums[key] = 0
        self.sums[key] += int(value)
        total = self.sums.pop(key) if end else self.sums[key]
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([[total]], np.int64))])
