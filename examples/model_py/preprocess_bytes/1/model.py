"""Splits texts into words. A text that is not UTF-8 fails only its own request, not the rest of the batch."""

from __future__ import annotations

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A preprocessing step, as in front of a language model."""

    def initialize(self, args):
        """Read a parameter of the configuration."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.lower = parameters["lower"]["string_value"] == "yes"

    def execute(self, requests):
        """Answer each request, or fail it."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Answer one request."""
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
        try:
            decoded = [text.decode() for text in texts]
        except UnicodeDecodeError:
            error = pb_utils.TritonError("TEXT is no UTF-8", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        words = " ".join(text.lower() if self.lower else text for text in decoded).split()
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("WORDS", np.array([[w.encode() for w in words]], np.object_)),
                pb_utils.Tensor("LENGTHS", np.array([[len(w) for w in words]], np.int64)),
            ]
        )
