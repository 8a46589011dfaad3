"""Answers once each time that a request comes, and has Triton queue it again until it has come IN times."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Generates a little at a time, as a language model with continuous batching does."""

    def initialize(self, args):
        """Nobody is being served."""
        self.left = {}

    def execute(self, requests):
        """Go on with each request."""
        for request in requests:
            self.go_on(request)

    def go_on(self, request):
        """Answer once."""
        key = request.correlation_id()
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.left[key] = int(request.inputs()[0].as_numpy()[0])
        self.left[key] -= 1
        left = np.array([self.left[key]], np.int32)
        response = pb_utils.InferenceResponse([pb_utils.Tensor("LEFT", left)])
        if self.left[key] > 0:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            request.get_response_sender().send(response)
        else:
            flag = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            request.get_response_sender().send(response, flags=flag)
