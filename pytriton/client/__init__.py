"""Inference clients for models of this daemon, of PyTriton, or of any Triton server.

| client | a call returns | protocol |
|---|---|---|
| `ModelClient` | the outputs | HTTP, gRPC |
| `FuturesModelClient` | a future of the outputs | HTTP, gRPC |
| `DecoupledModelClient` | an iterator of responses | gRPC |
| `AsyncioModelClient` | an awaitable of the outputs | HTTP, gRPC |
| `ApiClient`, `AsyncApiClient` | what a typed function returns | JSON over HTTP |
| `AsyncioDecoupledModelClient` | an async iterator of responses | gRPC |

The clients are a thin layer over tritonclient, which implements the protocols. Public names are in this folder. Its
two subpackages are private: `_inference` processes a request, from its validation to its responses; `_transport`
communicates with the servers.
"""

from __future__ import annotations

from pytriton.client.api_client import ApiClient, ApiError, AsyncApiClient
from pytriton.client.asyncio_client import AsyncioModelClient
from pytriton.client.asyncio_decoupled_client import AsyncioDecoupledModelClient
from pytriton.client.decoupled_client import DecoupledModelClient
from pytriton.client.futures_client import FuturesModelClient
from pytriton.client.model_client import ModelClient
from pytriton.client.options import RequestOptions
from pytriton.client.tls import TlsOptions

__all__ = [
    "ApiClient",
    "ApiError",
    "AsyncApiClient",
    "AsyncioDecoupledModelClient",
    "AsyncioModelClient",
    "DecoupledModelClient",
    "FuturesModelClient",
    "ModelClient",
    "RequestOptions",
    "TlsOptions",
]
