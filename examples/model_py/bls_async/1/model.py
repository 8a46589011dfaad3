"""Calls the model add_sub twice concurrently, and returns the sum of one call and the difference of the other."""

from __future__ import annotations

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Makes calls that do not wait for each other."""

    async def execute(self, requests):
        """Make two calls for each request."""
        responses = []
        for request in requests:
            inputs = [
                pb_utils.get_input_tensor_by_name(request, "INPUT0"),
                pb_utils.get_input_tensor_by_name(request, "INPUT1"),
            ]
            calls = [
                pb_utils.InferenceRequest(
                    model_name="add_sub", requested_output_names=[name], inputs=inputs
                ).async_exec()
                for name in ("OUTPUT0", "OUTPUT1")
            ]
            outputs = []
            for answer, name in zip(await asyncio.gather(*calls), ("OUTPUT0", "OUTPUT1")):
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
                outputs.append(pb_utils.get_output_tensor_by_name(answer, name))
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
