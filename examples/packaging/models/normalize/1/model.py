"""Convert colours from 0 to 255 into numbers from -1 to 1."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Normalizes images."""

    def execute(self, requests):
        """Answer each request."""
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            normalized = image.astype(np.float32) / 127.5 - 1
            tensor = pb_utils.Tensor("normalized", normalized)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
