"""tritonserver's endpoints for clients: their addresses as configured, and the ports chosen for them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

from pytriton._host.ports import PortError, assign_ports, listening
from pytriton._host.settings import grpc_tls
from pytriton._host.settings.declarations import DaemonConfig


class Endpoint(NamedTuple):
    """Listening address and port of an endpoint. `name` is "http", "grpc" or "metrics"."""

    name: str
    address: str
    port: int


class Endpoints:
    """The enabled endpoints. They keep their ports when tritonserver restarts."""

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
        """The enabled endpoints. If the settings let the daemon choose a port, that port is 0 until `choose_ports` is
        called.
        """
        return list(self._all.values())

    def port(self, name: str) -> int:
        """Return the port of an endpoint ("http", "grpc" or "metrics"); 0 if it is disabled."""
        return self._all[name].port if name in self._all else 0

    def choose_ports(self) -> None:
        """Choose a free port where the settings have 0, and check that the other ports are free.

        Raises:
            PortError: a port is in use (the message names the process that holds it) or configured twice
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
        """Choose the ports, listen on all endpoints, and return the sockets by endpoint name.

        Raises:
            PortError: a port is in use; the message names the process that holds it
        """
        found: dict[str, socket.socket] = {}
        try:
            wanted = {name: getattr(self._config, f"{name}_port") for name in self._all}
            # Bind the ports that the settings name first, so that the kernel cannot choose one of them for another
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
        """Use the ports of existing listening sockets. The key of each socket is the name of its endpoint."""
        for name, listener in listeners.items():
            if name in self._all:
                port = int(listener.getsockname()[1])
                self._all[name] = self._all[name]._replace(port=port)

    def urls(self) -> dict[str, str]:
        """Return `http_url`, `grpc_url` and `metrics_url` as used on this machine; "" for a disabled endpoint."""
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
    """Return the address at which clients on this machine can reach a socket that listens on `address`."""
    if address in ("0.0.0.0", ""):
        return "127.0.0.1"
    if address == "::":
        return "[::1]"
    return f"[{address}]" if ":" in address else address
