"""`DecoupledModelClient`: ask a model that answers with any number of responses, and read them as they come."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from pytriton.client._inference.request import Request
from pytriton.client._inference.response_streams import Responses, Stream
from pytriton.client._inference.sync_client import SyncClient
from pytriton.client._inference.tensor_conversion import Outputs
from pytriton.client.exceptions import PyTritonClientInferenceServerError

__all__ = ["DecoupledModelClient"]


class DecoupledModelClient(SyncClient[Iterator[Outputs]]):
    """A blocking client for one decoupled model, over gRPC. Arguments are those of `ModelClient`.

    `infer_sample` and `infer_batch` send the request and return an iterator of its responses. One request is under way
    at a time: read the iterator to its end, or close it, before the next. Requests of several clients run side by side.
    Leaving the iterator early (its ``close()``, or the end of its life once it was read) cancels the request.
    `inference_timeout_s` is the longest wait for each response.

    Example:
        >>> with DecoupledModelClient("grpc://localhost", "llm") as client:      # doctest: +SKIP
        ...     for response in client.infer_sample(prompt):
        ...         print(response["token"])
    """

    _decoupled = True

    def _set_up(self) -> None:
        self._lock = threading.Lock()
        self._stream: Stream | None = None  #: the last one that was begun
        super()._set_up()

    def close(self) -> None:
        """Close all connections; a stream under way ends with `PyTritonClientClosedError`."""
        self._core.closed = True  # before the reader wakes up
        if self._stream is not None:
            self._stream.close()
        super().close()

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)  # not there when it could not be made
        if stream is not None:
            stream.close()  # tritonclient would wait for its end

    def _infer(self, request: Request) -> Iterator[Outputs]:
        self._initialise()
        prepared = self._run(self._core.prepared(request))
        with self._lock:
            self._require_idle()
            stream = self._stream = Stream(self._core, prepared)
        try:
            self._core.require_open()
            stream.begin(self._run(self._core.choose()))
        except BaseException:
            stream.close()
            raise
        return Responses(stream, self)

    def _require_idle(self) -> None:
        stream = self._stream
        if stream is not None and stream.buffer.last is not None:
            stream.close()  # nobody read it, and it has ended by now
        if stream is not None and not stream.closed:
            raise PyTritonClientInferenceServerError(
                "Inference is already in progress. Read the iterator of the former request to its "
                "end, close it, or use another DecoupledModelClient."
            )
