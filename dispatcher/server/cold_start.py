"""The first start of tritonserver, on ports that may have to be chosen anew."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.server.server_process import ServerStartError
from pytriton.dispatcher.server.tritonserver import TritonServer

_log = structlog.get_logger(__name__)

#: A port that we chose ourselves may be taken by somebody before tritonserver listens on it.
_PORT_ATTEMPTS = 5


async def start_server(
    server: TritonServer, config: DaemonConfig, preload: Callable[[], Mapping[str, dict[str, Any]]]
) -> set[str]:
    """Start tritonserver; with ports that we chose ourselves, try others when one was snatched away.

    Args:
        server: is started
        config: says which ports it has
        preload: is asked before each attempt what it loads before it opens its ports: name -> configuration

    Returns:
        The models that it has loaded.

    Raises:
        ServerStartError: it does not start.
        PortError: a port that the settings name is taken.
    """
    chosen = 0 in (config.http_port, config.grpc_port, config.metrics_port)
    for attempt in itertools.count(1):
        server.choose_ports()
        try:
            return await server.start(preload())
        except ServerStartError as error:
            await server.stop()
            taken = "in use" in str(error) or "unavailable" in str(error)
            if not (chosen and taken) or attempt == _PORT_ATTEMPTS:
                raise
            _log.info("a free port was taken meanwhile, trying others")
    raise AssertionError  # it counts for ever
