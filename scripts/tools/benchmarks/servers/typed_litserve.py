"""Serves a typed function with LitServe. pydantic validates the JSON."""

from __future__ import annotations

import base64
from typing import Any

import litserve as ls
import models_work
import typed_work
import work
from pydantic import BaseModel


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
        return typed_work.predict(x.text, x.top_k)

    def encode_response(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the labels, which LitServe sends as JSON."""
        return output


class Measure(ls.LitAPI):
    """Measures an upload in base64, as in LitServe's examples: forms with files do not reach its workers (0.2.19)."""

    def setup(self, device: str) -> None:
        """Load nothing."""

    def decode_request(self, request: Upload) -> bytes:
        """Return the content of the upload."""
        return base64.b64decode(request.image)

    def predict(self, x: bytes) -> dict[str, int]:
        """Measure one upload."""
        return typed_work.measure(x)

    def encode_response(self, output: dict[str, int]) -> dict[str, int]:
        """Return the size, which LitServe sends as JSON."""
        return output


class Text(BaseModel):
    """The request's body for a model."""

    text: str


class CallModel(ls.LitAPI):
    """Calls one of the models."""

    def setup(self, device: str) -> None:
        """Load it."""
        self._call = models_work.MODELS[work.spec()["model"]["name"]]()

    def decode_request(self, request: Text) -> str:
        """Return the text."""
        return request.text

    def predict(self, x: str) -> dict[str, int]:
        """Call the model."""
        return self._call(x)

    def encode_response(self, output: dict[str, int]) -> dict[str, int]:
        """Return the result, which LitServe sends as JSON."""
        return output


# LitServe reads the annotation itself, and does not resolve those that are text.
Predict.decode_request.__annotations__["request"] = Query
Measure.decode_request.__annotations__["request"] = Upload
CallModel.decode_request.__annotations__["request"] = Text


def main() -> None:
    """Serve until the process is stopped."""
    spec = work.spec()
    name = spec["model"]["name"]
    api = {"predict": Predict, "measure": Measure}.get(name, CallModel)(api_path=f"/{name}")
    server = ls.LitServer(api, accelerator="cpu", fast_queue=True, timeout=60)
    server.run(
        host="127.0.0.1", port=spec["http_port"], generate_client_file=False, log_level="warning"
    )


if __name__ == "__main__":
    main()
