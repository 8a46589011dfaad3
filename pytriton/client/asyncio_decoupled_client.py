"""`AsyncioDecoupledModelClient`: call a decoupled model from a coroutine and iterate over its responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pytriton.client._inference.core import Prepared
from pytriton.client._inference.request import InferCall
from pytriton.client._inference.tensor_conversion import Outputs, decode
from pytriton.client._transport.servers import TritonEndpoint
from pytriton.client.asyncio_client import AsyncClient

__all__ = ["AsyncioDecoupledModelClient"]


class AsyncioDecoupledModelClient(AsyncClient[AsyncIterator[Outputs]]):
    """An asyncio client for one decoupled model, over gRPC. It takes the same arguments as `ModelClient`.

    `infer_sample` and `infer_batch` return an async iterator over the responses. Any number of requests may be in
    flight. Closing an iterator early cancels its request. `inference_timeout_s` limits the wait for each response.

    Example:
        >>> async with AsyncioDecoupledModelClient("grpc://localhost", "llm") as client:  # doctest: +SKIP
        ...     async for response in client.infer_sample(prompt):
        ...         print(response["token"])
    """

    _decoupled = True

    async def _infer(self, request: InferCall) -> AsyncIterator[Outputs]:
        # This is an async generator, so calling it returns the iterator immediately, as the base class requires.
        await self._initialise()
        prepared = await self._run(self._core.prepared(request))
        server = await self._run(self._core.choose())
        client = server.connection.client()  # type: ignore[attr-defined]  # of gRPC only
        # tritonclient's aio client cannot request an empty final response. Therefore each request gets its own
        # stream, which Triton ends after the last response.
        stream = client.stream_infer(_once(prepared), headers=prepared.headers)
        try:
            while (result := await self._next(stream, server)) is not None:
                # An empty response only marks the end, which the stream reports anyway.
                if result.get_response().outputs:
                    yield self._core.finish(decode(result), prepared)
        finally:
            stream.cancel()

    async def _next(self, stream: Any, server: TritonEndpoint) -> Any:
        """Return the next response; None at the end."""
        try:
            result, error = await asyncio.wait_for(stream.__anext__(), self._settings.deadline_s)
        except asyncio.CancelledError:
            self._core.require_open()  # close() cancels reads from the channel
            raise
        except StopAsyncIteration:
            self._core.require_open()
            return None
        except Exception as raised:
            result, error = None, raised
        if error is None:
            return result
        self._core.require_open()
        raise self._core.stream_failed(error, server)


async def _once(prepared: Prepared) -> AsyncIterator[dict[str, Any]]:
    yield prepared.arguments
