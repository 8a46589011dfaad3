"""The model in Triton's python backend, written as users write one."""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as pb_utils
import work


class TritonPythonModel:
    """The interface that Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Create the model's function."""
        config = json.loads(args["model_config"])
        self.model: dict[str, Any] = json.loads(config["parameters"]["model"]["string_value"])
        self.once = self.model["work"] == "nap"  # the work is done once for a whole batch
        if not self.model["decoupled"]:
            self.compute = work.function(self.model)

    def execute(self, requests: Any) -> Any:
        """Respond to a batch."""
        if self.model["decoupled"]:
            for request in requests:
                self.stream(request)
            return None
        if self.once:
            self.compute(None)
        return [pb_utils.InferenceResponse([self.answer(request)]) for request in requests]

    def answer(self, request: Any) -> Any:
        """Return the output of one request."""
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        return pb_utils.Tensor("y", x if self.once else self.compute(x))

    def stream(self, request: Any) -> None:
        """Send all responses of one request."""
        sender = request.get_response_sender()
        for token in work.tokens(self.model):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", token)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
