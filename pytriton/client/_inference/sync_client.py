"""Blocking clients: the common part of `ModelClient` and `DecoupledModelClient`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, TypeVar

from pytriton._protocol.closeable import Closeable
from pytriton.client._inference.base_client import BaseClient
from pytriton.client._inference.core import require_timeout
from pytriton.client._transport.connections import connect
from pytriton.client._transport.servers import wait_for_server
from pytriton.client._transport.steps import Steps, run
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = ["SyncClient"]

R = TypeVar("R")
T = TypeVar("T")
Self = TypeVar("Self", bound="SyncClient[Any]")


class SyncClient(BaseClient[R], Closeable):
    """A blocking, thread-safe client for one model."""

    _connect = staticmethod(connect)

    def _set_up(self) -> None:
        self._closing = threading.Event()
        self._initialising = threading.Lock()
        if not self._settings.lazy_init:
            try:
                self._initialise()
            except BaseException:
                self.close()
                raise

    @property
    def model_config(self) -> TritonModelConfig:
        """The model's configuration. Waits for the model if it has not been ready yet."""
        return self._initialise()

    @property
    def is_batching_supported(self) -> bool:
        """True if `infer_batch` can be used. Waits for the model if it has not been ready yet."""
        return self.model_config.batching

    def wait_for_server(self, timeout_s: float) -> None:
        """Wait until the server is ready.

        Args:
            timeout_s: maximum wait, in seconds

        Raises:
            PyTritonClientTimeoutError: the server did not become ready in time
        """
        require_timeout("timeout_s", timeout_s)
        self._run(wait_for_server(self._core.servers, timeout_s))

    def wait_for_model(self, timeout_s: float) -> None:
        """Wait until the model is ready.

        Args:
            timeout_s: maximum wait, in seconds

        Raises:
            PyTritonClientModelUnavailableError: a server responds, but the model did not become ready in time
            PyTritonClientTimeoutError: no server responded
        """
        require_timeout("timeout_s", timeout_s)
        self._run(self._core.wait_for_model(timeout_s))

    def load_model(
        self,
        config: str | Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load or reload the model from the server's model repository.

        Args:
            config: model configuration that replaces the one in the repository, as JSON or a dict
            files: the model's files, used instead of the repository: ``{"file:1/model.py": b"..."}``; requires
                `config`

        Raises:
            PyTritonClientInferenceServerError: the server refused; by default the endpoint requires an access token
        """
        self._run(self._core.load(config, files))

    def unload_model(self) -> None:
        """Unload the model on the server.

        Raises:
            PyTritonClientInferenceServerError: the server refused; by default the endpoint requires an access token
        """
        self._run(self._core.unload())

    def close(self) -> None:
        """Close all connections. Does nothing if already closed."""
        self._core.closed = True
        self._closing.set()
        for server in self._core.servers:
            server.connection.close()

    def __enter__(self: Self) -> Self:
        self._core.require_open()
        return self

    def _initialise(self) -> TritonModelConfig:
        core = self._core
        core.require_open()
        if core.initialised:
            assert core.config is not None
            return core.config
        with self._initialising:  # a second thread waits here and finds it done
            return self._run(core.initialise())

    def _run(self, steps: Steps[T]) -> T:
        self._core.require_open()
        return run(steps, self._pause)

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)
        self._core.require_open()
