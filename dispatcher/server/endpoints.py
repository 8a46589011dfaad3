"""The endpoints where clients reach tritonserver: addresses from the settings and their resolved ports."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

from pytriton._host.ports import PortError, assign_ports, listening
from pytriton._host.settings import grpc_tls
from pytriton._host.settings.declarations import DaemonConfig


class Endpoint(NamedTuple):
    """An endpoint: its `name` ("http", "grpc" or "metrics") and the address and port that it listens on."""

    name: str
    address: str
    port: int


class Endpoints:
    """The endpoints that the settings enable. They stay the same when tritonserver restarts."""

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
        """The enabled endpoints. A port that the settings leave at 0 stays 0 until `choose_ports` resolves it."""
        return list(self._all.values())

    def port(self, name: str) -> int:
        """Return the port of "http", "grpc" or "metrics"; 0 if that endpoint is disabled."""
        return self._all[name].port if name in self._all else 0

    def choose_ports(self) -> None:
        """Resolve the ports: pick a free one for 0, and check that any other is free.

        Raises:
            PortError: a port is in use (the text names the process that holds it) or configured twice.
        """
        config = self._config
        wanted = {
            f"{name}_port": (one.address, getattr(config, f"{name}_port"))
            for name, one in self._all.items()
        }
        for setting, port in assign_ports(wanted).items():
            name = setting.partition("_")[0]
            self._all[name] = self._all[name]._replace(port=port)

    def listen(self, backlog: int) -> dict[str, socket.socket]:
        """Listen on all endpoints and return the sockets by name. This also resolves the ports.

        Raises:
            PortError: a port is in use; the text names the process that holds it.
        """
        found: dict[str, socket.socket] = {}
        try:
            wanted = {name: getattr(self._config, f"{name}_port") for name in self._all}
            # Bind ports that the settings name first, so that the kernel does not assign one of them to another
            # endpoint.
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
        """Take over the ports of sockets that are already listening, by name."""
        for name, listener in listeners.items():
            if name in self._all:
                port = int(listener.getsockname()[1])
                self._all[name] = self._all[name]._replace(port=port)

    def urls(self) -> dict[str, str]:
        """Return `http_url`, `grpc_url` and `metrics_url` for clients on this machine; "" for a disabled endpoint."""
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
    """Return the address at which this machine reaches a listening address."""
    if address in ("0.0.0.0", ""):
        return "127.0.0.1"
    if address == "::":
        return "[::1]"
    return f"[{address}]" if ":" in address else address
