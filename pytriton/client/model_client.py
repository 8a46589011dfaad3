"""`ModelClient`: call a model and wait for the response."""

from __future__ import annotations

from pytriton.client._inference.request import InferCall
from pytriton.client._inference.sync_client import SyncClient
from pytriton.client._inference.tensor_conversion import Outputs

__all__ = ["ModelClient"]


class ModelClient(SyncClient[Outputs]):
    """A blocking client for one model.

    Args:
        url: URL of the server, such as ``"localhost"``, ``"host:8000"``, ``"grpc://host:8001"``, ``"https://host"``
            or ``"grpcs://host:8001"``. With a list of URLs of servers that serve the same model, requests go to the
            servers in turn, and unavailable servers are skipped.
        model_name: name of the model
        model_version: version of the model; None: the latest
        lazy_init: True: wait for the model before the first request; False: wait for it in the constructor
        init_timeout_s: maximum wait for the server and the model, in seconds; None: 300 s, but at most 10 s if a
            running server does not know the model
        inference_timeout_s: maximum wait for the response, or for each response of a decoupled model, in seconds;
            None: 60 s
        model_config: the model's configuration, if known; saves a query to the server
        ensure_model_is_ready: False: skip the readiness check before the first request
        access_token: token sent with every call; required for endpoints that the server restricts
        tls: certificates for https and grpcs; None: the system's trust store

    Raises:
        PyTritonClientInvalidUrlError: a URL cannot be parsed
        PyTritonClientValueError: another argument is invalid

    Example:
        >>> import numpy as np
        >>> with ModelClient("localhost:8000", "linear") as client:            # doctest: +SKIP
        ...     client.infer_sample(np.array([1, 2, 3], np.float32))
        {'y': array([3., 5., 7.], dtype=float32)}
    """

    def _infer(self, request: InferCall) -> Outputs:
        self._initialise()
        return self._run(self._core.infer(request))
