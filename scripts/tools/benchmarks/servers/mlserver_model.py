"""The MLServer runtime. Its codecs decode and encode the tensors."""

from __future__ import annotations

from typing import Any

import work
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Served(MLModel):
    """The model."""

    async def load(self) -> bool:
        """Create the model's function."""
        self.model: dict[str, Any] = self.settings.parameters.extra
        self.compute = work.function(self.model)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Respond to a request, or to a batch created by MLServer."""
        if self.model["dtype"] == "BYTES":
            strings = StringCodec.decode_input(payload.inputs[0])
            output = StringCodec.encode_output("y", self.compute(strings))
        else:
            x = NumpyCodec.decode_input(payload.inputs[0])
            output = NumpyCodec.encode_output("y", self.compute(x))
        return InferenceResponse(model_name=self.name, outputs=[output])
