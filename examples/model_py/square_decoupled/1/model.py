"""Answers n with n responses, each containing n, from a separate thread after `execute` has returned."""

from __future__ import annotations

import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers from threads."""

    def initialize(self, args):
        """Count the running threads."""
        self.under_way = 0
        self.changed = threading.Condition()

    def execute(self, requests):
        """Start a thread for each request, and return immediately."""
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            with self.changed:
                self.under_way += 1
            threading.Thread(
                target=self.answer, args=(request.get_response_sender(), int(number[0]))
            ).start()

    def answer(self, sender, number):
        """Answer one request; for 0, send no response."""
        for _ in range(number):
            output = pb_utils.Tensor("OUT", np.array([number], np.int32))
            sender.send(pb_utils.InferenceResponse(output_tensors=[output]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        with self.changed:
            self.under_way -= 1
            self.changed.notify_all()

    def finalize(self):
        """Wait for the threads."""
        with self.changed:
            self.changed.wait_for(lambda: self.under_way == 0)
