"""Sends each element of IN and its index after DELAY milliseconds. Any number of requests run concurrently."""

from __future__ import annotations

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers from a coroutine, so the next request begins while one waits."""

    async def execute(self, requests):
        """Answer all requests concurrently."""
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        """Answer one request."""
        sender = request.get_response_sender()
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        delays = pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy()
        if len(values) != len(delays):
            error = pb_utils.TritonError(
                f"{len(values)} values and {len(delays)} delays", pb_utils.TritonError.INVALID_ARG
            )
            sender.send(
                pb_utils.InferenceResponse(error=error),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )
            return
        for index, (value, delay) in enumerate(zip(values, delays)):
            await asyncio.sleep(float(delay) / 1000)
            outputs = [
                pb_utils.Tensor("OUT", np.array([value], np.int32)),
                pb_utils.Tensor("IDX", np.array([index], np.uint32)),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
