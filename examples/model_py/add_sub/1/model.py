"""Return the sum and the difference of two inputs."""

from __future__ import annotations

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds and subtracts."""

    def initialize(self, args):
        """Read the types of the outputs."""
        config = json.loads(args["model_config"])
        self.types = [
            pb_utils.triton_string_to_numpy(
                pb_utils.get_output_config_by_name(config, name)["data_type"]
            )
            for name in ("OUTPUT0", "OUTPUT1")
        ]

    def execute(self, requests):
        """Answer each request."""
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("OUTPUT0", (a + b).astype(self.types[0])),
                        pb_utils.Tensor("OUTPUT1", (a - b).astype(self.types[1])),
                    ]
                )
            )
        return responses

    def finalize(self):
        """Nothing to clean up."""
        print("add_sub is finalized")
