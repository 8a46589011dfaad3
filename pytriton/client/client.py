"""Re-exports of the clients under the path from which PyTriton scripts import them. Prefer `pytriton.client`."""

from __future__ import annotations

from pytriton.client._inference.base_client import BaseClient as BaseModelClient
from pytriton.client._inference.core import DEFAULT_INFERENCE_TIMEOUT_S
from pytriton.client.asyncio_client import AsyncioModelClient
from pytriton.client.asyncio_decoupled_client import AsyncioDecoupledModelClient
from pytriton.client.decoupled_client import DecoupledModelClient
from pytriton.client.futures_client import FuturesModelClient
from pytriton.client.model_client import ModelClient
from pytriton.client.utils import wait_for_model_ready, wait_for_server_ready

__all__ = [
    "DEFAULT_INFERENCE_TIMEOUT_S",
    "AsyncioDecoupledModelClient",
    "AsyncioModelClient",
    "BaseModelClient",
    "DecoupledModelClient",
    "FuturesModelClient",
    "ModelClient",
    "wait_for_model_ready",
    "wait_for_server_ready",
]
