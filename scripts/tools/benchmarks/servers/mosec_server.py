"""Serves the model with mosec: bytes in, bytes out."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import work
from mosec import Server, Worker


class Model(Worker):
    """A worker process. mosec spawns it, so an environment variable describes the model."""

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


def main() -> None:
    """Serve until the process is stopped."""
    spec = work.spec()
    model = spec["model"]
    os.environ["BENCH_MODEL"] = json.dumps(model)
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
    batched = model["work"] == "nap" or spec["batching"]
    if batched:
        wait_ms = 5 if model["work"] == "nap" else 1
        server.append_worker(
            Model,
            num=model["instances"],
            max_batch_size=32,
            max_wait_time=wait_ms,
        )
    else:
        server.append_worker(Model, num=model["instances"])
    server.run()


if __name__ == "__main__":
    main()
