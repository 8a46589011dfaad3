"""The daemon's own client of tritonserver: asks whether it lives, loads and unloads models.

It goes over HTTP where that is served, else over gRPC, with TLS when tritonserver's gRPC has it,
and always shows the access token.
"""

from __future__ import annotations

import importlib
from typing import Any

from pytriton.dispatcher.config import DaemonConfig
from pytriton.ipc.access import access_headers


class AdminClient:
    """A connection to one tritonserver process; to be made and used in a running event loop."""

    def __init__(self, config: DaemonConfig, http_port: int, grpc_port: int) -> None:
        over_http = config.allow_http
        self._headers = access_headers(config.access_token, grpc=not over_http)
        kind = "http" if over_http else "grpc"
        address = config.http_address if over_http else config.grpc_address
        port = http_port if over_http else grpc_port
        module = importlib.import_module(f"tritonclient.{kind}.aio")
        self._client: Any = module.InferenceServerClient(f"{reachable(address)}:{port}")

    async def is_live(self) -> bool:
        """Ask whether the server lives; raises whatever the transport raises when it cannot be asked."""
        return bool(await self._client.is_server_live(headers=self._headers))

    async def load(self, name: str, config: str) -> None:
        """Load a model with a configuration (JSON); raises tritonclient's and the transport's errors."""
        await self._client.load_model(name, headers=self._headers, config=config)

    async def unload(self, name: str) -> None:
        """Begin to unload a model; raises tritonclient's and the transport's errors."""
        await self._client.unload_model(name, headers=self._headers)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def reachable(address: str) -> str:
    """Return an address to connect to from this machine for one to listen on."""
    if address in ("0.0.0.0", ""):
        return "127.0.0.1"
    if address == "::":
        return "[::1]"
    return f"[{address}]" if ":" in address else address
