"""Serves the model with mosec: bytes in, bytes out; a typed function in JSON, its default, or in msgpack, validated by msgspec."""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

import msgspec
import numpy as np
import work
from mosec import Server, Worker
from mosec.mixin import TypedMsgPackMixin


class Model(Worker):
    """A model with tensors. mosec spawns its workers, so an environment variable describes the model."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, Any] = json.loads(os.environ["BENCH_MODEL"])
        self.compute = work.function(self.model)

    def deserialize(self, data: bytes) -> Any:
        """Return the array in a body."""
        return work.decode(self.model, data)

    def serialize(self, data: Any) -> bytes:
        """Return the body of an array."""
        return work.encode(self.model, data)

    def forward(self, data: Any) -> Any:
        """Respond to a request, or to a batch."""
        if isinstance(data, list):
            return list(self.compute(np.stack(data)))
        return self.compute(data)


class Query(msgspec.Struct):
    """The request's body."""

    text: str
    top_k: int = 3


class Upload(msgspec.Struct):
    """An uploaded image."""

    image: bytes


class PredictJson(Worker):
    """Labels a text."""

    def forward(self, data: dict[str, Any]) -> list[dict[str, Any]]:
        """Label one text."""
        return work.predict(data["text"], data["top_k"])


class MeasureJson(Worker):
    """Measures an upload in base64: mosec has no forms, and JSON has no bytes."""

    def forward(self, data: dict[str, Any]) -> dict[str, int]:
        """Measure one upload."""
        return work.measure(base64.b64decode(data["image"]))


class PredictMsgpack(TypedMsgPackMixin, Worker):
    """Labels a text."""

    def forward(self, data: Query) -> list[dict[str, Any]]:
        """Label one text."""
        return work.predict(data.text, data.top_k)


class MeasureMsgpack(TypedMsgPackMixin, Worker):
    """Measures an upload."""

    def forward(self, data: Upload) -> dict[str, int]:
        """Measure one upload."""
        return work.measure(data.image)


# mosec reads the annotation itself, and does not resolve those that are text.
PredictMsgpack.forward.__annotations__["data"] = Query
MeasureMsgpack.forward.__annotations__["data"] = Upload
#: The workers of typed functions.
TYPED = {
    ("predict", "json"): PredictJson,
    ("measure", "json"): MeasureJson,
    ("predict", "msgpack"): PredictMsgpack,
    ("measure", "msgpack"): MeasureMsgpack,
}


def main() -> None:
    """Serve until the process is stopped."""
    spec = work.spec()
    model = spec["model"]
    os.environ["BENCH_MODEL"] = json.dumps(model)
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", str(spec["http_port"])]
    sys.argv += ["--path", f"{spec['folder']}/mosec", "--timeout", "60000"]
    sys.argv += ["--log-level", "warning"]
    server = Server()
    if model["work"] == "typed":
        server.append_worker(TYPED[model["name"], os.environ.get("BENCH_FORMAT", "json")], num=1)
    elif model["work"] == "nap":
        server.append_worker(Model, num=model["instances"], max_batch_size=32, max_wait_time=5)
    else:
        server.append_worker(Model, num=model["instances"])
    server.run()


if __name__ == "__main__":
    main()
