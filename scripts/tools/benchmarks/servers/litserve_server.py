"""Serves the model with LitServe: raw bytes, or a typed function or a model with JSON that pydantic validates."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Annotated, Any

import litserve as ls
import models_work
import numpy as np
import work
from fastapi import Body, Response
from pydantic import BaseModel

OCTETS = "application/octet-stream"
SPEC = work.spec()
MODEL: dict[str, Any] = SPEC["model"]


class Raw(ls.LitAPI):
    """A model with tensors."""

    def setup(self, device: str) -> None:
        """Create the model's function."""
        self.compute = work.function(MODEL)

    def decode_request(self, request: bytes) -> Any:
        """Return the array in a body."""
        return work.decode(MODEL, request)

    def batch(self, inputs: Any) -> Any:
        """Stack the arrays of a batch."""
        return np.stack(inputs)

    def unbatch(self, output: Any) -> Any:
        """Split the array of a batch."""
        return list(output)

    def predict(self, x: Any) -> Any:
        """Compute."""
        return self.compute(x)

    def encode_response(self, output: Any) -> Any:
        """Return a response of bytes."""
        return Response(content=work.encode(MODEL, output), media_type=OCTETS)


class Stream(Raw):
    """A model that streams tokens."""

    def setup(self, device: str) -> None:
        """Load nothing."""

    def predict(self, x: Any) -> Iterator[Any]:
        """Yield the tokens."""
        yield from work.tokens(MODEL)

    def encode_response(self, output: Any) -> Iterator[Any]:
        """Yield their bytes."""
        for token in output:
            yield work.encode(MODEL, token)


class Query(BaseModel):
    """The request's body."""

    text: str
    top_k: int = 3


class Upload(BaseModel):
    """An uploaded image."""

    image: str


class Predict(ls.LitAPI):
    """Labels a text."""

    def setup(self, device: str) -> None:
        """Load nothing."""

    def decode_request(self, request: Query) -> Query:
        """Return the validated body."""
        return request

    def predict(self, x: Query) -> list[dict[str, Any]]:
        """Label one text."""
        return work.predict(x.text, x.top_k)


class Measure(ls.LitAPI):
    """Measures an upload in base64, as in LitServe's examples: forms with files do not reach its workers (0.2.19)."""

    def setup(self, device: str) -> None:
        """Load nothing."""

    def decode_request(self, request: Upload) -> bytes:
        """Return the content of the upload."""
        return base64.b64decode(request.image)

    def predict(self, x: bytes) -> dict[str, int]:
        """Measure one upload."""
        return work.measure(x)


class CallModel(ls.LitAPI):
    """Calls one of the models."""

    def setup(self, device: str) -> None:
        """Load it."""
        self._call = models_work.MODELS[MODEL["name"]]()

    def decode_request(self, request: Query) -> str:
        """Return the text."""
        return request.text

    def predict(self, x: str) -> dict[str, int]:
        """Call the model."""
        return self._call(x)


# LitServe reads the annotation itself, and does not resolve those that are text. FastAPI passes `bytes` unchanged.
Raw.decode_request.__annotations__["request"] = Annotated[bytes, Body(media_type=OCTETS)]
Predict.decode_request.__annotations__["request"] = Query
Measure.decode_request.__annotations__["request"] = Upload
CallModel.decode_request.__annotations__["request"] = Query


def api() -> ls.LitAPI:
    """Return the API of the model."""
    if MODEL["work"] in ("typed", "model"):
        kind = {"predict": Predict, "measure": Measure}.get(MODEL["name"], CallModel)
        return kind(api_path=f"/{MODEL['name']}")
    if MODEL["decoupled"]:
        return Stream(stream=True, api_path="/predict")
    if MODEL["work"] == "nap":
        size = MODEL["max_batch_size"]
        return Raw(max_batch_size=size, batch_timeout=0.005, api_path="/predict")
    return Raw(api_path="/predict")


if __name__ == "__main__":
    server = ls.LitServer(
        api(), accelerator="cpu", workers_per_device=MODEL["instances"], fast_queue=True, timeout=60
    )
    server.run(
        host="127.0.0.1", port=SPEC["http_port"], generate_client_file=False, log_level="warning"
    )
