"""The model in gunicorn's dirty arbiter, and the WSGI application that calls it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import work
from gunicorn.dirty import DirtyApp, get_dirty_client

PATH = "gunicorn_model:Deployed"
MODEL: dict[str, Any] = json.loads(os.environ["BENCH_MODEL"])
OCTETS = [("Content-Type", "application/octet-stream")]


class Deployed(DirtyApp):
    """One isolated worker."""

    def init(self) -> None:
        """Create the model's function, once in each worker."""
        self.compute = None if MODEL["decoupled"] else work.function(MODEL)

    def infer(self, body: bytes) -> bytes:
        """Respond to one request."""
        assert self.compute is not None
        return work.encode(MODEL, self.compute(work.decode(MODEL, body)))

    def stream(self) -> Iterator[bytes]:
        """Yield the responses of a stream."""
        for token in work.tokens(MODEL):
            yield work.encode(MODEL, token)

    def close(self) -> None:
        """Do nothing: the worker holds no resources."""


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Send the body to a worker, and the result to the client."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    client = get_dirty_client()
    if MODEL["decoupled"]:
        start_response("200 OK", OCTETS)
        answers: Iterable[bytes] = client.stream(PATH, "stream")
        return answers
    answer = client.execute(PATH, "infer", body)
    start_response("200 OK", [*OCTETS, ("Content-Length", str(len(answer)))])
    return [answer]
