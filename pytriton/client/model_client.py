"""`ModelClient`: ask a model and wait for the answer."""

from __future__ import annotations

from pytriton.client._inference.request import Request
from pytriton.client._inference.sync_client import SyncClient
from pytriton.client._inference.tensor_conversion import Outputs

__all__ = ["ModelClient"]


class ModelClient(SyncClient[Outputs]):
    """A blocking client for one model.

    Args:
        url: server, such as ``"localhost"``, ``"host:8000"``, ``"grpc://host:8001"``,
            ``"https://host"`` or ``"grpcs://host:8001"``. Of several servers that serve the same model a
            list: requests go to them in turn, and pass over those that are away
        model_name: name of the model
        model_version: its version; None is the latest
        lazy_init: False waits for the model at once, True before the first request
        init_timeout_s: longest wait for server and model, in seconds. None is 300 s, of which at most 10 s for
            a model that a running server does not know
        inference_timeout_s: longest wait for an answer (of a decoupled model: for the next answer), in
            seconds; None is 60 s
        model_config: the model's configuration, if it is known; saves asking the server
        ensure_model_is_ready: False does not ask whether the model is ready before the first request
        access_token: shown with every call; needed for endpoints that the server restricts
        tls: certificates for https and grpcs; None trusts what the machine trusts

    Raises:
        PyTritonClientInvalidUrlError: a URL cannot be read
        PyTritonClientValueError: another argument cannot be

    Example:
        >>> import numpy as np
        >>> with ModelClient("localhost:8000", "linear") as client:            # doctest: +SKIP
        ...     client.infer_sample(np.array([1, 2, 3], np.float32))
        {'y': array([3., 5., 7.], dtype=float32)}
    """

    def _infer(self, request: Request) -> Outputs:
        self._initialise()
        return self._run(self._core.infer(request))
