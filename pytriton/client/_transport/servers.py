"""The servers of one client: whose turn it is, and which are skipped.

With several URLs, requests go to the servers in turn. A server that cannot be reached, or does not have the model,
is skipped for some seconds; after that it must pass a readiness check before it gets a request again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytriton.client._transport.connections import ServerConnection
from pytriton.client._transport.failures import CallFailed, FailureKind
from pytriton.client._transport.steps import CallStep, Steps

__all__ = ["Servers", "TritonEndpoint"]

_REST_S = 3.0


@dataclass
class TritonEndpoint:
    """A server and its known state."""

    connection: ServerConnection
    ready: bool = True  #: as far as is known
    rests_until: float = 0.0  #: on time.monotonic

    @property
    def url(self) -> str:
        """Its URL, for messages."""
        return self.connection.url.with_scheme


class Servers:
    """The servers of a client, which all serve one model.

    Args:
        servers: at least one
        model_name: name of the model
        version: version of the model, "" for the latest
        headers: headers of every call: the access token
    """

    def __init__(
        self,
        servers: Sequence[TritonEndpoint],
        model_name: str,
        version: str,
        headers: dict[str, str],
    ) -> None:
        self.model_name = model_name
        self.version = version
        self._servers = list(servers)
        self._headers = headers
        self._turns = itertools.count()

    def __iter__(self) -> Iterator[TritonEndpoint]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    @property
    def module(self) -> Any:
        """Module of tritonclient with the classes for inputs and outputs."""
        return self._servers[0].connection.module

    @property
    def label(self) -> str:
        """Name and version of the model, for messages."""
        return f"model {self.model_name}/{self.version or '<latest>'}"

    def in_turn(self) -> Iterator[tuple[TritonEndpoint, bool]]:
        """Iterate over all servers once, starting with the one whose turn it is; skipped ones come last.

        The flag marks the last server.
        """
        count = len(self._servers)
        first = next(self._turns) % count
        turned = self._servers[first:] + self._servers[:first]
        now = time.monotonic()
        turned.sort(key=lambda server: server.rests_until > now)
        return ((server, number == count) for number, server in enumerate(turned, start=1))

    def rest(self, server: TritonEndpoint) -> None:
        """Skip a server for a while, unless it is the only one."""
        if len(self._servers) > 1:
            server.ready = False
            server.rests_until = time.monotonic() + _REST_S

    def call(
        self, server: TritonEndpoint, method: str, timeout_s: float, **arguments: Any
    ) -> Steps[Any]:
        """Call a method of one server, with the token."""
        return (yield CallStep(server.connection, method, timeout_s, arguments, self._headers))

    def check(self, server: TritonEndpoint, timeout_s: float) -> Steps[None]:
        """Check that the model is ready on a server.

        Raises:
            CallFailed: it is not; the text gives the reason
        """
        model = {"model_name": self.model_name, "model_version": self.version}
        if not (yield from self.call(server, "is_model_ready", timeout_s, **model)):
            # The server only said no. The response to a configuration request gives the reason.
            yield from self.call(server, "get_model_config", timeout_s, **model)
            if not (yield from self.call(server, "is_server_live", timeout_s)):
                raise CallFailed(
                    FailureKind.RESTRICTED,
                    "it knows the model, but restricts access to its readiness",
                )
            raise CallFailed(FailureKind.NOT_READY, "it knows the model, which is not ready")
        server.ready = True
        server.rests_until = 0.0
