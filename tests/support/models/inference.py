"""Send requests as any user of Triton would: with tritonclient over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import np_to_triton_dtype

Array = npt.NDArray[Any]
PROTOCOLS = ("http", "grpc")


class Running(Protocol):
    """The addresses of a running server."""

    @property
    def http(self) -> str: ...

    @property
    def grpc(self) -> str: ...


def triton_datatype(array: Array) -> str:
    """Return Triton's name for an array's type, including ml_dtypes' bfloat16, which tritonclient does not know."""
    if array.dtype.name == "bfloat16":
        return "BF16"
    datatype: str = np_to_triton_dtype(array.dtype)
    return datatype


class Inference:
    """A connection to one server over one protocol."""

    def __init__(self, protocol: str, address: str) -> None:
        self._module = tritonclient.http if protocol == "http" else tritonclient.grpc
        self._client = self._module.InferenceServerClient(address)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = (),
        **options: Any,
    ) -> dict[str, Array]:
        """Send one request; return the outputs by name (all of them if none are named)."""
        sent = []
        for name, array in inputs.items():
            tensor = self._module.InferInput(name, list(array.shape), triton_datatype(array))
            tensor.set_data_from_numpy(array)
            sent.append(tensor)
        wanted = [self._module.InferRequestedOutput(name) for name in outputs] or None
        result = self._client.infer(model, sent, outputs=wanted, **options)
        response = result.get_response()
        if self._module is tritonclient.http:
            names = [output["name"] for output in response.get("outputs", [])]
        else:
            names = [output.name for output in response.outputs]
        return {name: np.asarray(result.as_numpy(name)) for name in names}

    def is_ready(self, model: str) -> bool:
        """Return whether the server reports a model as ready."""
        return bool(self._client.is_model_ready(model))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def infer_once(
    server: Running,
    model: str,
    inputs: Mapping[str, Array],
    protocol: str = "http",
    **options: Any,
) -> dict[str, Array]:
    """Send one request on a new connection; return the outputs by name."""
    with closing(Inference(protocol, getattr(server, protocol))) as connection:
        return connection.infer(model, inputs, **options)
