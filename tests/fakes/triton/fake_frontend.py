"""A frontend without a process, whose requests can wait for models that tritonserver has not loaded yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytriton.dispatcher.server.frontend import PendingModels


class FakeFrontend:
    """The frontend of a FakeServer.

    Attributes:
        queues_requests: whether requests can wait
        names: returns the models that they wait for
        on_request: called with the model that a request waits for
        routes: the routes of typed functions
        forgotten: models that requests no longer wait for, in order
    """

    http_socket = "http.sock"

    def __init__(self, *, queues_requests: bool) -> None:
        self.queues_requests = queues_requests
        self.names: Callable[[], PendingModels] = PendingModels
        self.on_request: Callable[[str], None] = lambda name: None
        self.forgotten: list[str] = []
        self.routes: dict[str, Any] = {}

    async def set_routes(self, document: dict[str, Any]) -> None:
        self.routes = document

    async def forget_pending(self, name: str) -> None:
        self.forgotten.append(name)
