"""The endpoints where clients reach tritonserver: the settings' addresses, and settled ports."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

from pytriton._host.ports import PortError, listening, settle_ports
from pytriton._host.settings import grpc_tls
from pytriton._host.settings.declarations import DaemonConfig


class Endpoint(NamedTuple):
    """One of them. `name` is "http", "grpc" or "metrics"; `address` is what it listens on."""

    name: str
    address: str
    port: int


class Endpoints:
    """The endpoints that the settings switch on. They stay the same over restarts of tritonserver."""

    def __init__(self, config: DaemonConfig) -> None:
        self._config = config
        self._all = {
            name: Endpoint(
                name, getattr(config, f"{name}_address"), getattr(config, f"{name}_port")
            )
            for name in ("http", "grpc", "metrics")
            if getattr(config, f"allow_{name}")
        }

    @property
    def served(self) -> list[Endpoint]:
        """The endpoints that are switched on; a port 0 in the settings is 0 until it is settled."""
        return list(self._all.values())

    def port(self, name: str) -> int:
        """Return the port of "http", "grpc" or "metrics"; 0 when that is not served."""
        return self._all[name].port if name in self._all else 0

    def settle(self) -> None:
        """Choose the ports: 0 becomes a free one, any other has to be free.

        Raises:
            PortError: a port is in use, or wanted twice; names who holds it.
        """
        config = self._config
        wanted = {
            f"{name}_port": (one.address, getattr(config, f"{name}_port"))
            for name, one in self._all.items()
        }
        for setting, port in settle_ports(wanted).items():
            name = setting.partition("_")[0]
            self._all[name] = self._all[name]._replace(port=port)

    def listen(self, backlog: int) -> dict[str, socket.socket]:
        """Listen on all of them, by name; the ports are settled with it.

        Raises:
            PortError: a port is in use; names who holds it.
        """
        found: dict[str, socket.socket] = {}
        try:
            wanted = {name: getattr(self._config, f"{name}_port") for name in self._all}
            # A port that the settings name is not to be taken as a free one of another endpoint.
            for one in sorted(self.served, key=lambda one: wanted[one.name] == 0):
                setting = f"{one.name}_port"
                listener = listening(one.address, wanted[one.name], setting, backlog=backlog)
                found[one.name] = listener
                self._all[one.name] = one._replace(port=int(listener.getsockname()[1]))
        except PortError:
            for listener in found.values():
                listener.close()
            raise
        return found

    def adopt(self, listeners: Mapping[str, socket.socket]) -> None:
        """Take over the ports of sockets that listen already, by name."""
        for name, listener in listeners.items():
            if name in self._all:
                port = int(listener.getsockname()[1])
                self._all[name] = self._all[name]._replace(port=port)

    def urls(self) -> dict[str, str]:
        """Return `http_url`, `grpc_url` and `metrics_url` for clients on this machine; "" for what is not served."""
        urls = dict.fromkeys(("http_url", "grpc_url", "metrics_url"), "")
        schemes = {
            "grpc": "grpcs" if grpc_tls.uses_tls(self._config) else "grpc",
            "http": "https" if self._config.http_certificate else "http",
        }
        for one in self.served:
            path = "/metrics" if one.name == "metrics" else ""
            scheme = schemes.get(one.name, "http")
            urls[f"{one.name}_url"] = f"{scheme}://{reachable(one.address)}:{one.port}{path}"
        return urls


def reachable(address: str) -> str:
    """Return an address to connect to from this machine for one to listen on."""
    if address in ("0.0.0.0", ""):
        return "127.0.0.1"
    if address == "::":
        return "[::1]"
    return f"[{address}]" if ":" in address else address
