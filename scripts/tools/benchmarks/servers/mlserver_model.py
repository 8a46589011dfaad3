"""The MLServer runtime: V2 tensors by MLServer's own codecs."""

from __future__ import annotations

from typing import Any

import work
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Served(MLModel):
    """The model."""

    async def load(self) -> bool:
        """Read which work it is."""
        self.model: dict[str, Any] = self.settings.parameters.extra
        self.compute = work.function(self.model)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a request, or a batch that MLServer made."""
        if self.model["dtype"] == "BYTES":
            strings = StringCodec.decode_input(payload.inputs[0])
            output = StringCodec.encode_output("y", self.compute(strings))
        else:
            x = NumpyCodec.decode_input(payload.inputs[0])
            output = NumpyCodec.encode_output("y", self.compute(x))
        return InferenceResponse(model_name=self.name, outputs=[output])
