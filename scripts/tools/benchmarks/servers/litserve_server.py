"""Serves the model with LitServe. Requests and responses are raw bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import litserve as ls
import numpy as np
import work
from fastapi import Body, Response

OCTETS = "application/octet-stream"


class Api(ls.LitAPI):
    """One model."""

    def setup(self, device: str) -> None:
        """Create the model's function."""
        self.model: dict[str, Any] = self.spec_model
        if not self.model["decoupled"]:
            self.compute = work.function(self.model)

    def decode_request(self, request: bytes) -> Any:
        """Return the array in a body."""
        return work.decode(self.model, request)

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
        return Response(content=work.encode(self.model, output), media_type=OCTETS)


class Stream(Api):
    """A model that streams tokens."""

    def predict(self, x: Any) -> Iterator[Any]:
        """Yield the tokens."""
        yield from work.tokens(self.model)

    def encode_response(self, output: Any) -> Iterator[Any]:
        """Yield their bytes."""
        for token in output:
            yield work.encode(self.model, token)


# With this annotation, FastAPI passes the body unchanged.
Api.decode_request.__annotations__["request"] = Annotated[bytes, Body(media_type=OCTETS)]


def main() -> None:
    """Serve until the process is stopped."""
    spec = work.spec()
    model = spec["model"]
    batched = model["work"] == "nap"
    kind = Stream if model["decoupled"] else Api
    api = kind(
        max_batch_size=model["max_batch_size"] if batched else 1,
        batch_timeout=0.005 if batched else 0.0,
        stream=model["decoupled"],
        api_path="/predict",
    )
    api.spec_model = model
    server = ls.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=model["instances"],
        fast_queue=True,
        timeout=60,
    )
    server.run(
        host="127.0.0.1", port=spec["http_port"], generate_client_file=False, log_level="warning"
    )


if __name__ == "__main__":
    main()
