"""A daemon of a runner's own: started by it, and ended with it, however this process ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from pytriton.daemon import DaemonClient, connect
from pytriton.exceptions import DaemonNotRunningError, PyTritonDaemonError

__all__ = ["PrivateDaemon"]

#: The daemon is a shell's child. The shell reads a pipe that ends with this process, and ends the daemon then: no
#: signal tells of a parent's end but PR_SET_PDEATHSIG, which tells of the end of the thread that started it.
_GUARD = (
    '"$@" <"$PYTRITON_RUNNER_SETTINGS" & daemon=$!; read -r _; kill -TERM $daemon; wait $daemon'
)
#: A daemon tells of its readiness only who asks.
_LOOK_S = 0.05
_STOP_S = 60.0
_WORDS = 4000


class PrivateDaemon:
    """A running daemon in a runtime directory of its own; it keeps no registrations.

    Args:
        settings: of the daemon; ports that are not among them are free ones
        timeout_s: seconds that it may take to be ready; the first start on a machine fetches tritonserver

    Raises:
        PyTritonDaemonError: it did not start; with what it said last.
    """

    def __init__(self, settings: Mapping[str, Any], timeout_s: float) -> None:
        # Short: the path of a unix socket has at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="ptr-"))
        self._said = self._folder / "start.log"
        file = self._folder / "settings.json"
        document = {
            "http_port": 0,
            "grpc_port": 0,
            "metrics_port": 0,
            "log_format": "json",
            **settings,
            "runtime_dir": str(self._folder / "run"),
            "ephemeral": True,
        }
        file.write_text(json.dumps(document))
        with open(self._said, "wb") as output:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", sys.executable, "-m", "pytriton.dispatcher"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTRITON_RUNNER_SETTINGS": str(file)},
                start_new_session=True,  # an interrupt on the terminal is this process's to handle
            )
        try:
            self.client = self._wait_ready(time.monotonic() + timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the daemon; batches at hand are answered."""
        assert self._guard.stdin is not None  # a pipe, see above
        self._guard.stdin.close()
        try:
            self._guard.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_ready(self, deadline: float) -> DaemonClient:
        pid = None
        while time.monotonic() < deadline:
            try:
                client = connect(self._folder / "run", timeout_s=30.0)
                status = client.status()
                pid = status.pid
                loading = [one for one in client.repository() if one.state == "loading"]
                if status.state == "ready" and not loading:
                    return client
            except DaemonNotRunningError:
                if pid is not None or self._ended():
                    raise PyTritonDaemonError(
                        f"The runner's daemon did not start. It said:\n{self._last_words()}"
                    ) from None
            time.sleep(_LOOK_S)
        raise PyTritonDaemonError(
            f"The runner's daemon was not ready in time. It said:\n{self._last_words()}"
        )

    def _ended(self) -> bool:
        """Whether the daemon has: the shell, which waits for its input, has not reaped it then."""
        children = psutil.Process(self._guard.pid).children()
        return bool(children) and all(one.status() == psutil.STATUS_ZOMBIE for one in children)

    def _last_words(self) -> str:
        return self._said.read_text(errors="replace")[-_WORDS:].strip()
