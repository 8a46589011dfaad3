"""`RemoteTriton`: serves this script's models in a server that runs already on this machine."""

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

#: The module that a daemon runs.
_DAEMON = "pytriton.dispatcher"
#: Interval between checks for a server that is not listening yet.
_POLL_INTERVAL_S = 0.2
#: Seconds within which a healthy server responds to a liveness check.
_ANSWER_S = 5.0
#: Interval between checks whether the server still needs to be watched; its exit itself is an event.
_WATCH_MS = 1000


class RemoteTriton(TritonBase):
    """Bind models into a running daemon, or into another script's `Triton`, on this machine.

    The models are served until this object is closed or this process ends for any reason. A model replaces one of
    the same name; the replaced one is not restored afterwards.

    Args:
        url: address of the server: `localhost`, `localhost:8000`, `http://...`, `grpc://...`
        workspace: unused, accepted for compatibility with PyTriton
        access_token: the server's; None: it is looked up. It does not give access to other users' servers

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
            False if there was nothing to remove.
        """
        with self._lock:
            client = self._client
            if client is None or os.getpid() != self._pid:
                return False
            mine = [model for model in self._models if model.served is not None]
            self._forget_served()
        self._take_out(client, mine)
        return True

    def is_alive(self) -> bool:
        """Return whether the server runs and every model served from here has a worker, or will have one again.

        When not connected, ask the server.
        """
        return super().is_alive() if self.is_connected() else self._answers()

    def _answers(self) -> bool:
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
            return bool(connection.call("is_server_live", _ANSWER_S, {}, headers))
        except CallFailed:
            return False
        finally:
            connection.close()

    def close(self) -> None:
        """Alias of `stop`."""
        self.stop()

    def get_access_token(self) -> str | None:
        """Return the server's access token; None if there is none.

        Raises:
            PyTritonDaemonError: the token cannot be read, and none was given
        """
        if self._access_token is not None or self._client is None:
            return self._access_token
        return self._client.access_token

    def connect(self) -> None:
        """Wait up to two minutes for the server, and load the bound models into it.

        Raises:
            TimeoutError: nothing listens at the URL
            PyTritonInvalidOperationError: the listener is not a daemon of this user on this machine
            RegistrationError: a model cannot be served; none of this object's models is served then
        """
        try:
            super().connect()
        except BaseException:
            mine = [model for model in self._models if model.served is not None]
            if mine and self._client is None:
                self._take_out(self._daemon(), mine)
            raise

    def _take_out(self, client: DaemonClient, models: Sequence[BoundModel]) -> None:
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

    def _before_serving(self) -> None:
        self.connect()

    def _daemon(self) -> DaemonClient:
        from pytriton.daemon import connect

        return connect(self._find(), timeout_s=60.0)

    def _reach(self) -> DaemonClient:
        client = self._daemon()
        if self._access_token is not None and client.access_token not in (None, self._access_token):
            raise PyTritonDaemonError(
                f"The given access token does not match the server at "
                f"{self._url.with_scheme}. Omit it: it is read from the server's runtime directory."
            )
        self._pid = os.getpid()
        self._ended.clear()
        watch = threading.Thread(
            target=self._watch, args=(client, client.status().pid), name="remote", daemon=True
        )
        watch.start()
        return client

    def _find(self) -> Path:
        """Return the runtime directory of the daemon whose tritonserver listens at the URL.

        Raises:
            TimeoutError: nothing listens there
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            found = runtime_dir_at(self._url)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(
                    "Triton Inference Server is not ready after timeout. Nothing listens at "
                    f"{self._url.with_scheme} after {self._timeout_s:g} s: start a Triton() or "
                    "`pytriton-daemon start` there first, as the same user."
                )
            time.sleep(_POLL_INTERVAL_S)

    def _watch(self, client: DaemonClient, pid: int) -> None:
        """Wait for the daemon's exit, until this object no longer needs it."""
        try:
            ended = linux.pidfd_open(pid)
        except ProcessLookupError:
            ended = -1
        poll = select.poll()
        if ended >= 0:
            poll.register(ended, select.POLLIN)
        try:
            while ended >= 0 and not poll.poll(_WATCH_MS):
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
    """Return the runtime directory of the daemon that serves a URL; None when nothing listens there.

    Raises:
        PyTritonInvalidOperationError: the listener is not a daemon of this user on this machine
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
    except psutil.Error:  # it has exited since
        return None
    if found is not None or _DAEMON in words:
        # A daemon that is restarting its server will be found later.
        return found
    who = f"process {holder} ({' '.join(words)[:80]})" if holder else "a process of another user"
    raise PyTritonInvalidOperationError(
        f"The listener at {url.with_scheme} is not a pytriton daemon of this user, but {who}. Give the "
        "address of a Triton() of another script, or of a `pytriton-daemon`."
    )


def _served_from(holder: Any) -> Path | None:
    """Return the runtime directory of the listening process: the server runs in its folder of backends.

    With the native frontend, the daemon holds the sockets as well.
    """
    for process in (holder, *holder.children()):
        folder = Path(process.cwd())
        if folder.parent.name == "backends" and (folder.parents[1] / "control.sock").exists():
            return folder.parents[1]
    return None


def _own_address(url: TritonUrl) -> str:
    """Return the address in a URL, which must be one of this machine."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            url.hostname, url.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.bind((address[0], 0))
    except OSError as error:
        raise PyTritonInvalidOperationError(
            f"{url.hostname} is not an address of this machine ({error}): RemoteTriton binds models into "
            "servers on this machine only. For others use pytriton.daemon.connect('tcp://...')."
        ) from error
    return str(address[0])
