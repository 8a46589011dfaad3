"""Declares its inputs, outputs and batching in auto_complete_config, without a config.pbtxt."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Doubles its input."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        """Complete the configuration."""
        auto_complete_model_config.add_input({"name": "x", "data_type": "TYPE_FP64", "dims": [-1]})
        auto_complete_model_config.add_output({"name": "y", "data_type": "TYPE_FP64", "dims": [-1]})
        auto_complete_model_config.set_max_batch_size(8)
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def execute(self, requests):
        """Double the input."""
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * request.inputs()[0].as_numpy())])
            for request in requests
        ]
