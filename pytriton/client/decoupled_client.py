"""`DecoupledModelClient`: ask a model that answers with any number of responses, and read them as they come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tritonclient.utils import InferenceServerException

from pytriton.client.core import Prepared
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.client.failures import CallFailed, describe
from pytriton.client.request import Request
from pytriton.client.servers import Server
from pytriton.client.streams import ResponseBuffer, is_final, stream_arguments
from pytriton.client.sync_client import SyncClient
from pytriton.client.tensors import Outputs, decode

__all__ = ["DecoupledModelClient"]

#: Longest wait for the reason why a stream did not begin, in seconds; it is there as a rule.
_REASON_S = 1.0


class DecoupledModelClient(SyncClient[Iterator[Outputs]]):
    """A blocking client for one decoupled model, over gRPC. Arguments are those of `BaseClient`.

    `infer_sample` and `infer_batch` return an iterator of the responses. The request is sent when the first is asked
    for. One request is under way at a time: read the iterator to its end, or close it, before the next.
    Leaving the iterator early (its ``close()``, or the end of its life) cancels the request.
    `inference_timeout_s` is the longest wait for each response.

    Example:
        >>> with DecoupledModelClient("grpc://localhost", "llm") as client:      # doctest: +SKIP
        ...     for response in client.infer_sample(prompt):
        ...         print(response["token"])
    """

    _decoupled = True

    def _set_up(self) -> None:
        self._busy = threading.Lock()
        self._buffer: ResponseBuffer | None = None
        super()._set_up()

    def close(self) -> None:
        """Close all connections; a stream under way ends with `PyTritonClientClosedError`."""
        self._core.closed = True  # before the reader wakes up
        buffer = self._buffer
        if buffer is not None:
            buffer.close()
        super().close()

    def _infer(self, request: Request) -> Iterator[Outputs]:
        self._initialise()
        return self._responses(self._core.prepare(request))

    def _responses(self, prepared: Prepared) -> Iterator[Outputs]:
        if not self._busy.acquire(blocking=False):
            raise PyTritonClientInferenceServerError(
                "Inference is already in progress. Read the iterator of the former request to its "
                "end, close it, or use another DecoupledModelClient."
            )
        try:
            self._core.require_open()
            server = self._run(self._core.choose())
            yield from self._stream(server, prepared)
        finally:
            self._busy.release()

    def _stream(self, server: Server, prepared: Prepared) -> Iterator[Outputs]:
        buffer = self._buffer = ResponseBuffer()
        client = server.connection.client()  # type: ignore[attr-defined]  # of gRPC only
        final = False
        try:
            client.start_stream(buffer.put, headers=prepared.headers)
            self._send(client, server, prepared)
            while not final:
                result = self._next(buffer, server)
                final = is_final(result)
                if not final or result.get_response().outputs:
                    yield self._core.finish(decode(result), prepared)
        finally:
            self._buffer = None
            buffer.close()
            # Only what is not over: tritonserver (2.51) loses track of a stream that is cancelled while it ends, and
            # takes its model for being in use until the grace period of an unregister is over.
            client.stop_stream(cancel_requests=not final)

    def _send(self, client: Any, server: Server, prepared: Prepared) -> None:
        try:
            client.async_stream_infer(**stream_arguments(prepared.arguments))
        except InferenceServerException as error:
            # A stream that could not even begin. Why is told where the responses come.
            assert self._buffer is not None
            with suppress(CallFailed):
                _, told = self._buffer.get(_REASON_S) or (None, None)
                error = told or error
            failure = describe(error)
            raise (self._core.inference_error(failure, server) if failure else error) from None

    def _next(self, buffer: ResponseBuffer, server: Server) -> Any:
        try:
            response = buffer.get(self._settings.deadline_s)
        except CallFailed as late:
            raise self._core.inference_error(late, server) from None
        if response is None:
            self._core.require_open()  # raises: only close() closes a buffer that is read
        result, error = response or (None, None)
        if error is not None:
            failure = describe(error)
            raise self._core.inference_error(failure, server) if failure else error
        return result
