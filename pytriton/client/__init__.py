"""Clients that ask models: of this daemon, of PyTriton, or of any Triton server.

| client | a call gives | over |
|---|---|---|
| `ModelClient` | the outputs | HTTP, gRPC |
| `FuturesModelClient` | a future of the outputs | HTTP, gRPC |
| `DecoupledModelClient` | an iterator of responses | gRPC |
| `AsyncioModelClient` | something to await | HTTP, gRPC |
| `AsyncioDecoupledModelClient` | an async iterator of responses | gRPC |

They are a thin layer over tritonclient, which speaks the protocols. Everything a user imports lies in this folder.
Two packages below it are private: `_inference` holds one request, from its checks to its responses; `_transport`
holds the way to a server.
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
