"""Reschedules a request until it has been executed IN times, then answers with that number."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Processes each request in several steps."""

    def initialize(self, args):
        """Start without requests in progress."""
        self.times = {}

    def execute(self, requests):
        """Continue each request."""
        return [self.go_on(request) for request in requests]

    def go_on(self, request):
        """Count, and answer at the end."""
        key = request.correlation_id()
        self.times[key] = self.times.get(key, 0) + 1
        wanted = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
        if self.times[key] < wanted:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        times = np.array([self.times.pop(key)], np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TIMES", times)])
