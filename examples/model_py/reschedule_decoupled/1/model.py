"""Sends one response per execution, and reschedules the request until it has been executed IN times."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Generates step by step, as a language model with continuous batching does."""

    def initialize(self, args):
        """Start without requests in progress."""
        self.left = {}

    def execute(self, requests):
        """Continue each request."""
        for request in requests:
            self.go_on(request)

    def go_on(self, request):
        """Send one response."""
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
