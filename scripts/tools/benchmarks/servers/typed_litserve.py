"""Serves a typed function with LitServe: JSON validated by pydantic, or a form with a file."""

from __future__ import annotations

from typing import Any

import litserve as ls
import typed_work
import work
from fastapi import Request
from pydantic import BaseModel


class Query(BaseModel):
    """The request's body."""

    text: str
    top_k: int = 3


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
    """Measures an upload."""

    def setup(self, device: str) -> None:
        """Load nothing."""

    def decode_request(self, request: Any) -> bytes:
        """Return the content of the file. LitServe passes the form, although the type is that of the request."""
        content: bytes = request["image"].file.read()
        return content

    def predict(self, x: bytes) -> dict[str, int]:
        """Measure one upload."""
        return typed_work.measure(x)

    def encode_response(self, output: dict[str, int]) -> dict[str, int]:
        """Return the size, which LitServe sends as JSON."""
        return output


# LitServe reads the annotation itself, and does not resolve those that are text.
Predict.decode_request.__annotations__["request"] = Query
Measure.decode_request.__annotations__["request"] = Request


def main() -> None:
    """Serve until the process is stopped."""
    spec = work.spec()
    name = spec["model"]["name"]
    api = {"predict": Predict, "measure": Measure}[name](api_path=f"/{name}")
    server = ls.LitServer(api, accelerator="cpu", fast_queue=True, timeout=60)
    server.run(
        host="127.0.0.1", port=spec["http_port"], generate_client_file=False, log_level="warning"
    )


if __name__ == "__main__":
    main()
