"""`AsyncioDecoupledModelClient`: read the responses of a decoupled model in a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pytriton.client.asyncio_client import AsyncClient
from pytriton.client.core import Prepared
from pytriton.client.failures import CallFailed, Kind, describe
from pytriton.client.request import Request
from pytriton.client.servers import Server
from pytriton.client.streams import is_final, stream_arguments
from pytriton.client.tensors import Outputs, decode

__all__ = ["AsyncioDecoupledModelClient"]


class AsyncioDecoupledModelClient(AsyncClient[AsyncIterator[Outputs]]):
    """A client for one decoupled model in coroutines, over gRPC. Arguments are those of `BaseClient`.

    `infer_sample` and `infer_batch` return an async iterator of the responses; any number of requests may be
    under way. Leaving an iterator early cancels its request. `inference_timeout_s` is the longest wait for each
    response.

    Example:
        >>> async with AsyncioDecoupledModelClient("grpc://localhost", "llm") as client:  # doctest: +SKIP
        ...     async for response in client.infer_sample(prompt):
        ...         print(response["token"])
    """

    _decoupled = True

    async def _infer(self, request: Request) -> AsyncIterator[Outputs]:
        # An async generator: the call returns it at once, as the base class says.
        await self._initialise()
        prepared = self._core.prepare(request)
        server = await self._run(self._core.choose())
        client = server.connection.client()  # type: ignore[attr-defined]  # of gRPC only
        stream = client.stream_infer(_once(prepared), headers=prepared.headers)
        try:
            final = False
            while not final:
                result = await self._next(stream, server)
                final = is_final(result)
                if not final or result.get_response().outputs:
                    yield self._core.finish(decode(result), prepared)
        finally:
            stream.cancel()

    async def _next(self, stream: Any, server: Server) -> Any:
        try:
            result, error = await asyncio.wait_for(stream.__anext__(), self._settings.deadline_s)
        except Exception as raised:
            result, error = None, raised
        if error is None:
            return result
        self._core.require_open()
        if isinstance(error, StopAsyncIteration):
            error = CallFailed(Kind.BROKEN, "the stream ended without a final response")
        failure = describe(error)
        raise self._core.inference_error(failure, server) if failure else error


async def _once(prepared: Prepared) -> AsyncIterator[dict[str, Any]]:
    yield stream_arguments(prepared.arguments)
