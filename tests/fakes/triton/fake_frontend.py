"""A frontend without a process: it has requests wait for models that tritonserver does not have yet."""

from __future__ import annotations

from collections.abc import Callable

from pytriton.dispatcher.server.frontend import Awaited


class FakeFrontend:
    """The frontend of a FakeServer.

    Attributes:
        awaits: whether requests can wait
        names: tells the models that they wait for
        asked: is told which one a request is for
        forgotten: those that nobody is to wait for any more, in order
    """

    def __init__(self, *, awaits: bool) -> None:
        self.awaits = awaits
        self.names: Callable[[], Awaited] = Awaited
        self.asked: Callable[[str], None] = lambda name: None
        self.forgotten: list[str] = []

    def await_models(self, names: Callable[[], Awaited], asked: Callable[[str], None]) -> None:
        self.names, self.asked = names, asked

    async def forget_awaited(self, name: str) -> None:
        self.forgotten.append(name)
