"""Serves a typed function with mosec: JSON without validation, its default, or msgpack validated by msgspec."""

from __future__ import annotations

import base64
import os
import sys
from typing import Any

import msgspec
import typed_work
import work
from mosec import Server, Worker
from mosec.mixin import TypedMsgPackMixin


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
        return typed_work.predict(data["text"], data["top_k"])


class MeasureJson(Worker):
    """Measures an upload in base64: mosec has no forms, and JSON has no bytes."""

    def forward(self, data: dict[str, Any]) -> dict[str, int]:
        """Measure one upload."""
        return typed_work.measure(base64.b64decode(data["image"]))


class PredictMsgpack(TypedMsgPackMixin, Worker):
    """Labels a text."""

    def forward(self, data: Query) -> list[dict[str, Any]]:
        """Label one text."""
        return typed_work.predict(data.text, data.top_k)


class MeasureMsgpack(TypedMsgPackMixin, Worker):
    """Measures an upload."""

    def forward(self, data: Upload) -> dict[str, int]:
        """Measure one upload."""
        return typed_work.measure(data.image)


# mosec reads the annotation itself, and does not resolve those that are text.
PredictMsgpack.forward.__annotations__["data"] = Query
MeasureMsgpack.forward.__annotations__["data"] = Upload
WORKERS = {
    ("predict", "json"): PredictJson,
    ("measure", "json"): MeasureJson,
    ("predict", "msgpack"): PredictMsgpack,
    ("measure", "msgpack"): MeasureMsgpack,
}


def main() -> None:
    """Serve until the process is stopped. BENCH_FORMAT comes from the system."""
    spec = work.spec()
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", str(spec["http_port"])]
    sys.argv += [
        "--path",
        f"{spec['folder']}/mosec",
        "--timeout",
        "60000",
        "--log-level",
        "warning",
    ]
    server = Server()
    server.append_worker(WORKERS[spec["model"]["name"], os.environ["BENCH_FORMAT"]], num=1)
    server.run()


if __name__ == "__main__":
    main()
