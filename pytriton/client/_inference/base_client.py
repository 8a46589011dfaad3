"""Base class of the four clients that hold connections: their common arguments and properties."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from pytriton.client._inference.core import ClientSettings, Core
from pytriton.client._inference.request import InferMethods
from pytriton.client._transport.connections import ServerConnection
from pytriton.client._transport.failures import SERVER_ERROR
from pytriton.client._transport.url import TritonUrl, Urls
from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.client.tls import TlsOptions
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = ["BaseClient"]

R = TypeVar("R")
Self = TypeVar("Self", bound="BaseClient[Any]")


class BaseClient(InferMethods[R]):
    """A client for one model. `ModelClient` describes the constructor's arguments."""

    _decoupled: ClassVar[bool] = False
    _server_error: ClassVar[str] = SERVER_ERROR

    def __init__(
        self,
        url: Urls,
        model_name: str,
        model_version: str | int | None = None,
        *,
        lazy_init: bool = True,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        model_config: TritonModelConfig | None = None,
        ensure_model_is_ready: bool = True,
        access_token: str | None = None,
        tls: TlsOptions | None = None,
    ) -> None:
        self._settings = ClientSettings(
            url,
            model_name,
            model_version,
            lazy_init,
            init_timeout_s,
            inference_timeout_s,
            model_config,
            ensure_model_is_ready,
            access_token,
            tls,
        )
        if self._decoupled and not self._settings.urls[0].is_grpc:
            raise PyTritonClientValueError(
                f"{type(self).__name__} only supports gRPC, got "
                f"{self._settings.urls[0].with_scheme}. Use grpc://host:8001 or grpcs://host:8001."
            )
        self._core = Core(
            type(self).__name__,
            self._settings,
            self._connect,
            decoupled=self._decoupled,
            server_error=self._server_error,
        )
        self._set_up()

    def _set_up(self) -> None:
        """Hook for subclasses, called at the end of `__init__`."""

    @staticmethod
    def _connect(url: TritonUrl, tls: TlsOptions | None) -> ServerConnection:
        raise NotImplementedError

    @classmethod
    def from_existing_client(cls: type[Self], existing_client: BaseClient[Any]) -> Self:
        """Create a client for the same model on the same servers, with separate connections.

        The new client skips the readiness check, and reuses the model's configuration if the existing client knows
        it. No request is sent.
        """
        settings = existing_client._settings
        return cls(
            settings.url,
            settings.model_name,
            settings.model_version,
            init_timeout_s=settings.init_timeout_s,
            inference_timeout_s=settings.inference_timeout_s,
            model_config=existing_client._core.config,
            ensure_model_is_ready=False,
            access_token=settings.access_token,
            tls=settings.tls,
        )

    @property
    def model_name(self) -> str:
        """Name of the model."""
        return self._settings.model_name

    @property
    def model_version(self) -> str | None:
        """Version of the model; None: the latest."""
        return self._settings.version or None

    def __repr__(self) -> str:
        urls = ", ".join(url.with_scheme for url in self._settings.urls)
        return f"<{type(self).__name__} of {self._core.servers.label} at {urls}>"
