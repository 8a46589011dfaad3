"""Inference clients for models of this daemon, of PyTriton, or of any Triton server.

| client | a call returns | protocol |
|---|---|---|
| `ModelClient` | the outputs | HTTP, gRPC |
| `FuturesModelClient` | a future of the outputs | HTTP, gRPC |
| `DecoupledModelClient` | an iterator of responses | gRPC |
| `AsyncioModelClient` | an awaitable of the outputs | HTTP, gRPC |
| `AsyncioDecoupledModelClient` | an async iterator of responses | gRPC |

They are a thin layer over tritonclient, which implements the protocols. The public names are in this folder.
Two packages below it are private: `_inference` processes a request, from validation to its responses;
`_transport` handles the connection to a server.
"""

from __future__ import annotations

from pytriton.client.asyncio_client import AsyncioModelClient
from pytriton.client.asyncio_decoupled_client import AsyncioDecoupledModelClient
from pytriton.client.decoupled_client import DecoupledModelClient
from pytriton.client.futures_client import FuturesModelClient
from pytriton.client.model_client import ModelClient
from pytriton.client.options import RequestOptions
from pytriton.client.tls import TlsOptions

__all__ = [
    "AsyncioDecoupledModelClient",
    "AsyncioModelClient",
    "DecoupledModelClient",
    "FuturesModelClient",
    "ModelClient",
    "RequestOptions",
    "TlsOptions",
]
