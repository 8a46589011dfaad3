"""`ModelClient`: ask a model and wait for the answer."""

from __future__ import annotations

from pytriton.client._inference.request import Request
from pytriton.client._inference.sync_client import SyncClient
from pytriton.client._inference.tensor_conversion import Outputs

__all__ = ["ModelClient"]


class ModelClient(SyncClient[Outputs]):
    """A blocking client for one model. Arguments are those of `BaseClient`.

    Example:
        >>> import numpy as np
        >>> with ModelClient("localhost:8000", "linear") as client:            # doctest: +SKIP
        ...     client.infer_sample(np.array([1, 2, 3], np.float32))
        {'y': array([3., 5., 7.], dtype=float32)}
    """

    def _infer(self, request: Request) -> Outputs:
        self._initialise()
        return self._run(self._core.infer(self._core.prepare(request)))
