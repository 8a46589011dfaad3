"""`AsyncioModelClient`: call a model from a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any, TypeVar

from pytriton.client._inference.base_client import BaseClient
from pytriton.client._inference.core import require_timeout
from pytriton.client._inference.request import InferCall
from pytriton.client._inference.tensor_conversion import Outputs
from pytriton.client._transport.connections import aconnect
from pytriton.client._transport.servers import wait_for_server
from pytriton.client._transport.steps import Steps, arun
from pytriton.client.exceptions import PyTritonClientError
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = ["AsyncClient", "AsyncioModelClient"]

R = TypeVar("R")
T = TypeVar("T")
Self = TypeVar("Self", bound="AsyncClient[Any]")


class AsyncClient(BaseClient[R]):
    """A client for one model with awaitable methods. Any number of tasks in one event loop may use it concurrently.

    It can be created outside the event loop, because no connection is opened before the first request.
    """

    _connect = staticmethod(aconnect)
    _server_error = "Error occurred on Triton Inference Server side: {text}"

    _initialising: asyncio.Future[TritonModelConfig] | None = None
    #: The event loop that first used the client: its connections belong to that loop.
    _loop: asyncio.AbstractEventLoop | None = None

    @property
    def model_config(self) -> Awaitable[TritonModelConfig]:
        """An awaitable for the model's configuration. Waits for the model unless it was ready before."""
        return self._initialise()

    async def wait_for_server(self, timeout_s: float) -> None:
        """Wait until the server is ready; see `ModelClient.wait_for_server`."""
        require_timeout("timeout_s", timeout_s)
        await self._run(wait_for_server(self._core.servers, timeout_s))

    async def wait_for_model(self, timeout_s: float) -> None:
        """Wait until the model is ready; see `ModelClient.wait_for_model`."""
        require_timeout("timeout_s", timeout_s)
        await self._run(self._core.wait_for_model(timeout_s))

    async def load_model(
        self,
        config: str | Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load the model on the server; see `ModelClient.load_model`."""
        await self._run(self._core.load(config, files))

    async def unload_model(self) -> None:
        """Unload the model on the server; see `ModelClient.unload_model`."""
        await self._run(self._core.unload())

    async def close(self) -> None:
        """Close all connections. Does nothing if already closed."""
        self._core.closed = True
        for server in self._core.servers:
            await server.connection.close()

    async def __aenter__(self: Self) -> Self:
        self._core.require_open()
        if not self._settings.lazy_init:
            try:
                await self._initialise()
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _initialise(self) -> TritonModelConfig:
        core = self._core
        core.require_open()
        self._require_its_loop()
        if core.initialised:
            assert core.config is not None
            return core.config
        if self._initialising is None:  # the first task starts it for all tasks
            task = asyncio.ensure_future(self._run(core.initialise()))
            task.add_done_callback(self._initialised)
            self._initialising = task
        # Use `shield`, so that cancelling one task does not cancel this for the others.
        return await asyncio.shield(self._initialising)

    def _initialised(self, task: asyncio.Future[TritonModelConfig]) -> None:
        self._initialising = None
        if not task.cancelled():
            task.exception()  # mark it as retrieved, even if all waiting tasks were cancelled

    async def _run(self, steps: Steps[T]) -> T:
        self._core.require_open()
        self._require_its_loop()
        return await arun(steps, self._pause)

    def _require_its_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise PyTritonClientError(
                f"{type(self).__name__} belongs to the event loop in which it was first used, but was called in "
                f"another one. Create a client for each event loop, such as each asyncio.run(...). "
                f"from_existing_client(...) creates one that does not query the model again."
            )

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._core.require_open()


class AsyncioModelClient(AsyncClient[Coroutine[Any, Any, Outputs]]):
    """An asyncio client for one model. It takes the same arguments as `ModelClient`.

    Example:
        >>> async with AsyncioModelClient("localhost", "linear") as client:      # doctest: +SKIP
        ...     result = await client.infer_sample(x)
    """

    async def _infer(self, request: InferCall) -> Outputs:
        await self._initialise()
        return await self._run(self._core.infer(request))
