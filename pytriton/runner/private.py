"""`PrivateDaemon`: a daemon that a runner starts, and that stops with it even if this process crashes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from pytriton.daemon import DaemonClient, connect
from pytriton.exceptions import DaemonStartError
from pytriton.triton.server import DaemonProcess, new_runtime_dir

__all__ = ["PrivateDaemon"]

logger = logging.getLogger(__name__)

_SETTINGS = {
    "http_port": 0,
    "grpc_port": 0,
    "metrics_port": 0,
    "log_format": "json",
    "grace_period_s": 30.0,
    # The startup waits until the models are loaded, and reports each failure.
    "readiness": "server_up",
}
#: Interval between polls of the daemon's repository, in seconds.
_POLL_INTERVAL_S = 0.05


class PrivateDaemon:
    """A daemon in its own runtime directory that does not persist registrations. The constructor starts it.

    Args:
        settings: settings of the daemon; ports that are not set are chosen automatically
        timeout_s: maximum wait for the start, in seconds. The first start on a machine downloads tritonserver

    Raises:
        PyTritonDaemonError: the daemon did not start (the message gives the reason), or its models were not loaded in
            time.
    """

    def __init__(self, settings: Mapping[str, Any], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        runtime_dir = new_runtime_dir()
        own = {"runtime_dir": str(runtime_dir), "ephemeral": True}
        self._server = DaemonProcess({**_SETTINGS, **settings, **own}, _log_exit, quiet=True)
        self._server.start()
        try:
            self._server.wait_ready(timeout_s)
            self.client = connect(runtime_dir, timeout_s=30.0)
            _wait_loaded(self.client, deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the daemon after the current batches have been answered."""
        self._server.stop()


def _wait_loaded(client: DaemonClient, deadline: float) -> None:
    while any(one.state == "loading" for one in client.repository()):
        if time.monotonic() > deadline:
            raise DaemonStartError("The models of the runner's daemon were not loaded in time.")
        time.sleep(_POLL_INTERVAL_S)


def _log_exit(server: DaemonProcess, reason: str) -> None:
    logger.error("the runner's daemon exited: %s", reason)
