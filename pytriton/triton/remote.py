"""`RemoteTriton`: serves this script's models in a server that is already running on this machine."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton._protocol import linux
from pytriton.constants import DEFAULT_TRITON_STARTUP_TIMEOUT_S
from pytriton.exceptions import (
    PyTritonDaemonError,
    PyTritonInvalidOperationError,
)
from pytriton.triton.base import TritonBase, logger
from pytriton.triton.models import BoundModel

if TYPE_CHECKING:
    from pytriton.client._transport.url import TritonUrl
    from pytriton.daemon import DaemonClient
    from pytriton.triton.local import WorkspacePath

#: The module on a daemon's command line.
_DAEMON = "pytriton.dispatcher"
#: Interval between checks of whether the server is listening.
_POLL_INTERVAL_S = 0.2
#: Timeout of a liveness check.
_LIVENESS_TIMEOUT_S = 5.0
#: Interval between checks of whether the watching thread is still needed. The server's exit itself wakes the thread.
_WATCH_INTERVAL_MS = 1000


class RemoteTriton(TritonBase):
    """Serves this script's models in a running daemon, or in another script's `Triton`, on this machine.

    The models are served until this object is closed or this process exits for any reason. A model replaces an
    existing one of the same name, which is not restored afterwards.

    Args:
        url: address of the server: `localhost`, `localhost:8000`, `http://...`, `grpc://...`
        workspace: unused, accepted for compatibility with PyTriton
        access_token: the server's access token; None: read it from the server's runtime directory. A token does not
            give access to other users' servers.

    Raises:
        PyTritonClientInvalidUrlError: the URL is invalid

    Example:
        >>> with RemoteTriton(url="localhost") as triton:               # doctest: +SKIP
        ...     triton.bind("linear", infer_fn, [Tensor(...)], [Tensor(...)])
        ...     triton.serve()
    """

    _replaces = True

    def __init__(
        self, url: str, workspace: WorkspacePath = None, access_token: str | None = None
    ) -> None:
        from pytriton.client._transport.url import TritonUrl

        super().__init__()
        self._url = TritonUrl.from_url(url)
        self._access_token = access_token
        self._timeout_s = float(DEFAULT_TRITON_STARTUP_TIMEOUT_S)

    def __enter__(self) -> RemoteTriton:
        """Connect to the server."""
        self.connect()
        return self

    def stop(self) -> bool:
        """Remove this object's models from the server, which keeps running.

        Returns:
            False if this object was not connected.
        """
        with self._lock:
            client = self._client
            if client is None or os.getpid() != self._pid:
                return False
            mine = [model for model in self._models if model.served is not None]
            self._forget_served()
        self._unload(client, mine)
        return True

    def is_alive(self) -> bool:
        """Return whether the server runs and every model served by this object has a worker or is starting one.

        Before `connect`, return whether the server answers a liveness check.
        """
        return super().is_alive() if self.is_connected() else self._is_server_live()

    def _is_server_live(self) -> bool:
        from pytriton.client._transport.connections import connect
        from pytriton.client._transport.failures import CallFailed
        from pytriton.client.auth import create_auth_headers

        headers = {}
        if self._access_token is not None:
            headers = create_auth_headers(
                self._access_token, "grpc" if self._url.is_grpc else "http"
            )
        connection = connect(self._url, None)
        try:
            return bool(connection.call("is_server_live", _LIVENESS_TIMEOUT_S, {}, headers))
        except CallFailed:
            return False
        finally:
            connection.close()

    def close(self) -> None:
        """Alias of `stop`."""
        self.stop()

    def get_access_token(self) -> str | None:
        """Return the server's access token; None if it has none, or if no token was given and no server is connected.

        Raises:
            PyTritonDaemonError: no token was given, and the server's token cannot be read
        """
        if self._access_token is not None or self._client is None:
            return self._access_token
        return self._client.access_token

    def connect(self) -> None:
        """Wait up to two minutes for the server, then load the bound models into it.

        Raises:
            TimeoutError: no server listens at the URL
            PyTritonInvalidOperationError: the process listening there is not a daemon of this user on this machine
            RegistrationError: a model cannot be served. None of this object's models is served in this case.
        """
        try:
            super().connect()
        except BaseException:
            mine = [model for model in self._models if model.served is not None]
            if mine and self._client is None:
                self._unload(self._daemon(), mine)
            raise

    def _unload(self, client: DaemonClient, models: Sequence[BoundModel]) -> None:
        try:
            for model in models:
                model.served = None
                try:
                    model.unload(client)
                except PyTritonDaemonError as error:
                    logger.warning(
                        "Could not remove model %s from the server: %s", model.name, error
                    )
        finally:
            self._ended.set()

    def _prepare_to_serve(self) -> None:
        self.connect()

    def _daemon(self) -> DaemonClient:
        from pytriton.daemon import connect

        return connect(self._find_runtime_dir(), timeout_s=60.0)

    def _wait_for_daemon(self) -> DaemonClient:
        client = self._daemon()
        if self._access_token is not None and client.access_token not in (None, self._access_token):
            raise PyTritonDaemonError(
                f"The access token does not match that of the server at {self._url.with_scheme}. "
                "Leave out access_token=: the token is then read from the server's runtime directory."
            )
        self._pid = os.getpid()
        self._ended.clear()
        watch = threading.Thread(
            target=self._watch, args=(client, client.status().pid), name="remote", daemon=True
        )
        watch.start()
        return client

    def _find_runtime_dir(self) -> Path:
        """Wait for the server and return the runtime directory of its daemon.

        Raises:
            TimeoutError: no server listens at the URL
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            found = runtime_dir_at(self._url)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(
                    "Triton Inference Server is not ready after timeout. No server is listening at "
                    f"{self._url.with_scheme} after {self._timeout_s:g} s: start a Triton() or "
                    "run `pytriton-daemon start` first, as the same user."
                )
            time.sleep(_POLL_INTERVAL_S)

    def _watch(self, client: DaemonClient, pid: int) -> None:
        """Wait for the daemon's exit and mark this object as stopped. Return early once this object is stopped."""
        try:
            ended = linux.pidfd_open(pid)
        except ProcessLookupError:
            ended = -1
        poll = select.poll()
        if ended >= 0:
            poll.register(ended, select.POLLIN)
        try:
            while ended >= 0 and not poll.poll(_WATCH_INTERVAL_MS):
                if self._client not in (None, client) or self._ended.is_set():
                    return
        finally:
            if ended >= 0:
                os.close(ended)
        with self._lock:
            if self._client not in (None, client) or self._ended.is_set():
                return
            logger.error("The server at %s has exited.", self._url.with_scheme)
            self._forget_served()
            self._ended.set()


def runtime_dir_at(url: TritonUrl) -> Path | None:
    """Return the runtime directory of the daemon that serves a URL; None if no server is ready there.

    Raises:
        PyTritonInvalidOperationError: the process listening there is not a daemon of this user on this machine
    """
    import psutil

    address = _own_address(url)
    holder = None
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or not connection.laddr:
            continue
        if connection.laddr.port != url.port:
            continue
        if connection.laddr.ip in (address, f"::ffff:{address}", "0.0.0.0", "::"):
            holder = connection.pid or 0
    if holder is None:
        return None
    try:
        words = psutil.Process(holder).cmdline() if holder else []
        found = _served_from(psutil.Process(holder)) if holder else None
    except psutil.Error:  # the process has just exited
        return None
    if found is not None or _DAEMON in words:
        return found  # None while the daemon restarts its server: the caller tries again
    who = f"process {holder} ({' '.join(words)[:80]})" if holder else "a process of another user"
    raise PyTritonInvalidOperationError(
        f"The server at {url.with_scheme} is {who}, not a pytriton daemon that this user runs. Pass the "
        "address of another script's Triton(), or of a running pytriton-daemon."
    )


def _served_from(holder: Any) -> Path | None:
    """Return the runtime directory of a listening tritonserver or daemon; None if `holder` is neither.

    tritonserver's working directory is the `backends` folder of the runtime directory. With the native frontend, the
    daemon holds the listening sockets, too, so its child processes are examined as well.
    """
    for process in (holder, *holder.children()):
        folder = Path(process.cwd())
        if folder.parent.name == "backends" and (folder.parents[1] / "control.sock").exists():
            return folder.parents[1]
    return None


def _own_address(url: TritonUrl) -> str:
    """Resolve the host of a URL and return its IP address, which must belong to this machine."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            url.hostname, url.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.bind((address[0], 0))
    except OSError as error:
        raise PyTritonInvalidOperationError(
            f"{url.hostname} is not an address of this machine ({error}). RemoteTriton works only with "
            "servers on this machine. For others, use pytriton.daemon.connect('tcp://...')."
        ) from error
    return str(address[0])
