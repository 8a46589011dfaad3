"""The first start of tritonserver; retries with other ports when a chosen one is taken."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.server.server_process import ServerStartError
from pytriton.dispatcher.server.tritonserver import TritonServer

_log = structlog.get_logger(__name__)

#: A port that the daemon chose may be taken by another process before tritonserver listens on it.
_PORT_ATTEMPTS = 5


async def start_server(
    server: TritonServer, config: DaemonConfig, preload: Callable[[], Mapping[str, dict[str, Any]]]
) -> set[str]:
    """Start tritonserver. If a port that the daemon chose has been taken since, retry with others.

    Args:
        server: the server to start
        config: defines the ports
        preload: returns the models to load before the ports open (name -> configuration); called before each attempt

    Returns:
        The names of the models that were loaded.

    Raises:
        ServerStartError: tritonserver did not start.
        PortError: a port that the settings name is in use.
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
            _log.info("a chosen port was taken by another process, retrying with others")
    raise AssertionError  # unreachable: the loop never ends by itself
