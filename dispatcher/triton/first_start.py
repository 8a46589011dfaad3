"""The first start of tritonserver, on ports that may have to be chosen anew."""

from __future__ import annotations

import itertools

import structlog

from pytriton.dispatcher.settings.declarations import DaemonConfig
from pytriton.dispatcher.triton.server_process import ServerStartError
from pytriton.dispatcher.triton.tritonserver import TritonServer

_log = structlog.get_logger(__name__)

#: A port that we chose ourselves may be taken by somebody before tritonserver listens on it.
_PORT_ATTEMPTS = 5


async def start_server(server: TritonServer, config: DaemonConfig) -> None:
    """Start tritonserver; with ports that we chose ourselves, try others when one was snatched away.

    Raises:
        ServerStartError: it does not start.
        PortError: a port that the settings name is taken.
    """
    chosen = 0 in (config.http_port, config.grpc_port, config.metrics_port)
    for attempt in itertools.count(1):
        server.choose_ports()
        try:
            await server.start()
            return
        except ServerStartError as error:
            await server.stop()
            taken = "in use" in str(error) or "unavailable" in str(error)
            if not (chosen and taken) or attempt == _PORT_ATTEMPTS:
                raise
            _log.info("a free port was taken meanwhile, trying others")
