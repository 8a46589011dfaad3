"""Send requests to decoupled models over gRPC, and receive their responses as they arrive."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tritonclient.grpc

from support.models.inference import Array, triton_datatype


class Streaming:
    """One stream to one server: a request, then its responses. A context manager."""

    def __init__(
        self, address: str, model: str, inputs: Mapping[str, Array], **options: Any
    ) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(address)
        self._answers: queue.Queue[Any] = queue.Queue()
        self._over = False
        self._client.start_stream(lambda result, error: self._answers.put(error or result))
        sent = []
        for name, array in inputs.items():
            tensor = tritonclient.grpc.InferInput(name, list(array.shape), triton_datatype(array))
            tensor.set_data_from_numpy(array)
            sent.append(tensor)
        self._client.async_stream_infer(model, sent, enable_empty_final_response=True, **options)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Yield responses until the last one; raise errors."""
        while True:
            answer = self._answers.get(timeout=60)
            if isinstance(answer, Exception):
                self._over = True
                raise answer
            response = answer.get_response()
            self._over = bool(response.parameters["triton_final_response"].bool_param)
            if response.outputs:
                names = [output.name for output in response.outputs]
                yield {name: np.asarray(answer.as_numpy(name)) for name in names}
            if self._over:
                return

    def cancel(self) -> None:
        """Cancel the request."""
        self._client.stop_stream(cancel_requests=True)

    def __enter__(self) -> Streaming:
        return self

    def __exit__(self, *error: object) -> None:
        # tritonserver 2.51 may forget a stream that is cancelled while it ends: see the decoupled client.
        self._client.stop_stream(cancel_requests=not self._over)
        self._client.close()
