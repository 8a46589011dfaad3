"""A daemon of a runner's own: started by it, and ended with it, however this process ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from pytriton.daemon import DaemonClient, connect
from pytriton.exceptions import DaemonStartError
from pytriton.triton.server import ServerProcess, new_runtime_dir

__all__ = ["PrivateDaemon"]

logger = logging.getLogger(__name__)

_SETTINGS = {
    "http_port": 0,
    "grpc_port": 0,
    "metrics_port": 0,
    "log_format": "json",
    "grace_period_s": 30.0,
    # Whoever starts it waits until its models are loaded, and asks each that could not be.
    "ready_when": "up",
}
#: A daemon tells of its repository only who asks.
_LOOK_S = 0.05


class PrivateDaemon:
    """A running daemon in a runtime directory of its own; it keeps no registrations.

    Args:
        settings: of the daemon; ports that are not among them are free ones
        timeout_s: seconds that it may take to be ready; the first start on a machine fetches tritonserver

    Raises:
        PyTritonDaemonError: it did not start, and says why; or its models were not loaded in time.
    """

    def __init__(self, settings: Mapping[str, Any], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        runtime_dir = new_runtime_dir()
        own = {"runtime_dir": str(runtime_dir), "ephemeral": True}
        self._server = ServerProcess({**_SETTINGS, **settings, **own}, _tell_of_end, quiet=True)
        self._server.start()
        try:
            self._server.wait_ready(timeout_s)
            self.client = connect(runtime_dir, timeout_s=30.0)
            _wait_loaded(self.client, deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the daemon; batches at hand are answered."""
        self._server.stop()


def _wait_loaded(client: DaemonClient, deadline: float) -> None:
    while any(one.state == "loading" for one in client.repository()):
        if time.monotonic() > deadline:
            raise DaemonStartError("The models of the runner's daemon were not loaded in time.")
        time.sleep(_LOOK_S)


def _tell_of_end(server: ServerProcess, reason: str) -> None:
    logger.error("the runner's daemon has ended: %s", reason)
