"""`DecoupledModelClient`: call a decoupled model and iterate over its responses as they arrive."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from pytriton.client._inference.request import InferCall
from pytriton.client._inference.response_streams import Responses, ResponseStream
from pytriton.client._inference.sync_client import SyncClient
from pytriton.client._inference.tensor_conversion import Outputs
from pytriton.client.exceptions import PyTritonClientInferenceServerError

__all__ = ["DecoupledModelClient"]


class DecoupledModelClient(SyncClient[Iterator[Outputs]]):
    """A blocking client for one decoupled model, over gRPC. Its arguments are those of `ModelClient`.

    `infer_sample` and `infer_batch` send the request and return an iterator over its responses. Only one request can
    be in flight at a time: exhaust or close the iterator before you send the next one. Use several clients for
    parallel requests. ``close()``, or dropping a partly read iterator, cancels the request. `inference_timeout_s`
    limits the wait for each response.

    Example:
        >>> with DecoupledModelClient("grpc://localhost", "llm") as client:      # doctest: +SKIP
        ...     for response in client.infer_sample(prompt):
        ...         print(response["token"])
    """

    _decoupled = True

    def _set_up(self) -> None:
        self._lock = threading.Lock()
        self._stream: ResponseStream | None = None  #: the last stream started
        super()._set_up()

    def close(self) -> None:
        """Close all connections. A stream in flight ends with `PyTritonClientClosedError`."""
        self._core.closed = True  # before the reader wakes up
        if self._stream is not None:
            self._stream.close()
        super().close()

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)  # missing if the constructor failed
        if stream is not None:
            stream.close()  # tritonclient would wait for its end

    def _infer(self, request: InferCall) -> Iterator[Outputs]:
        self._initialise()
        prepared = self._run(self._core.prepared(request))
        with self._lock:
            self._require_idle()
            stream = self._stream = ResponseStream(self._core, prepared)
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
            stream.close()  # unread, and finished by now
        if stream is not None and not stream.closed:
            raise PyTritonClientInferenceServerError(
                "Inference is already in progress. Read the iterator of the previous request to its "
                "end, close it, or use another DecoupledModelClient."
            )
