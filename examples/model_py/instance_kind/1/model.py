"""Returns the arguments of `initialize`: kind, device, version and name."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils

NAMES = ("model_instance_kind", "model_instance_device_id", "model_version", "model_name")


class TritonPythonModel:
    """A real model would choose its device by these arguments."""

    def initialize(self, args):
        """Keep the arguments."""
        self.values = np.array([args[name].encode() for name in NAMES], np.object_)

    def execute(self, requests):
        """Return them."""
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("ARGS", self.values)]) for _ in requests
        ]
