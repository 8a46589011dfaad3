"""The daemon's client of a native frontend: HTTP over the private unix socket, where nothing is restricted.

An HTTP library would take a quarter of a daemon's start to import. Our own program always answers in one form: a
status, Content-Length, JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pytriton._host.ports import reachable_path
from pytriton.dispatcher.server.frontend import ClientWork, ServerRefused, Unreached

#: How long a liveness probe waits for the process to accept connections.
_ACCEPTING_S = 1.0
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ")
_LENGTH = re.compile(rb"\r\nContent-Length: *([0-9]+)\r\n", re.IGNORECASE)
#: pid, user and group: struct ucred of SO_PEERCRED, unix(7).
_CREDENTIALS = struct.Struct("3i")


class InProgress(ServerRefused):
    """The request would break what clients have in progress (409)."""


class NativeAdmin:
    """A connection to one process; see `Admin` for the methods.

    Args:
        path: path of the socket. The daemon itself listens on it, so requests to an exited process stay unanswered.
        exited: done when the process has exited
        accepting: done when the process accepts connections
    """

    def __init__(
        self, path: Path, exited: asyncio.Future[int], accepting: asyncio.Future[None]
    ) -> None:
        self._path = path
        self._exited = exited
        self._accepting = accepting
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def is_live(self) -> bool:
        """Probe liveness. Raises Unreached after a while if the process does not accept connections yet."""
        if not self._accepting.done():
            signs: set[asyncio.Future[Any]] = {self._accepting, self._exited}
            await asyncio.wait(signs, timeout=_ACCEPTING_S, return_when=asyncio.FIRST_COMPLETED)
            if not self._accepting.done():
                raise Unreached("it does not accept connections yet")
        await self._ask("GET", "/v2/health/live")
        return True

    async def version(self) -> str:
        """Return the version of Triton's core."""
        return str((await self._ask("GET", "/v2"))["version"])

    async def load(self, name: str, config: str | None) -> None:
        """Load a model with a configuration (JSON), or with its own if None."""
        body = {} if config is None else {"parameters": {"config": config}}
        await self._ask("POST", f"/v2/repository/models/{quote(name, safe='')}/load", body)

    async def unload(self, name: str) -> None:
        """Start to unload a model."""
        await self._ask("POST", f"/v2/repository/models/{quote(name, safe='')}/unload", {})

    async def repository_states(self) -> dict[str, str]:
        """Return the models in all repositories with their states."""
        states: dict[str, str] = {}
        for model in await self._ask("POST", "/v2/repository/index", {}):
            if states.get(model["name"], "") in ("", "UNAVAILABLE"):
                states[model["name"]] = model.get("state", "")
        return states

    async def show_ready(self, ready: bool) -> None:
        """Set whether the process reports ready once its models are."""
        await self._ask("POST", "/admin/ready", {"ready": ready})

    async def forget(self, name: str) -> None:
        """Stop letting requests wait for a model."""
        await self._ask("POST", "/admin/forget", {"model": name})

    async def accept(self, accept: bool) -> None:
        """Make the process accept clients' connections, or stop accepting them; open ones stay."""
        await self._ask("POST", "/admin/accept", {"accept": accept})

    async def retire(self, successor: str | None, *, force: bool) -> None:
        """Make the process hand its connections over to the one that listens at `successor`, and exit after the last of
        them.

        Raises:
            InProgress: sequences are in progress and `force` is not set.
        """
        where = {} if successor is None else {"successor": successor}
        await self._ask("POST", "/admin/retire", {**where, "force": force})

    async def leave(self) -> None:
        """Make the process stop accepting; return when its connections have ended or the exit timeout has expired."""
        await self._ask("POST", "/admin/leave", {})

    async def work(self) -> ClientWork:
        """Return what clients have in progress."""
        answer = await self._ask("GET", "/admin/work")
        return ClientWork(answer["connections"], answer["requests"], answer["sequences"])

    async def close(self) -> None:
        """Close the connection. Pending requests raise Unreached."""
        if not self._closed.done():
            self._closed.set_result(None)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        asking = asyncio.ensure_future(self._answer(method, path, body))
        ends: set[asyncio.Future[Any]] = {self._exited, self._closed}
        try:
            await asyncio.wait({asking, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise Unreached("the process has ended, or the connection was closed")
            return asking.result()
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait([asking])

    async def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: front\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        try:
            status, text = await self._exchange(head.encode() + content)
            if status >= 400:
                raise (InProgress if status == 409 else ServerRefused)(_said(text))
            return json.loads(text) if text else None
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            raise Unreached(f"{type(error).__name__}: {error}") from error

    async def _exchange(self, request: bytes) -> tuple[int, str]:
        """Send a request and return the status and body of the answer. There is no timeout, since a load has none.

        Each request opens its own connection, so the frontend cannot close one just as it is reused.
        """
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            path = reachable_path(folder, self._path.name)
            reader, writer = await asyncio.open_unix_connection(path)
        finally:
            os.close(folder)
        try:
            _see_that_it_is_ours(writer.get_extra_info("socket"))
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            status, length = _STATUS.match(head), _LENGTH.search(head)
            if status is None or length is None:
                raise ValueError(f"not an answer of the frontend: {head[:100]!r}")
            return int(status[1]), (await reader.readexactly(int(length[1]))).decode()
        finally:
            writer.transport.abort()  # no orderly close is needed


def _see_that_it_is_ours(connection: socket.socket) -> None:
    """Raise ConnectionError if the socket belongs to another daemon, which can be after our directory was deleted.

    The kernel reports the process that called listen(): for each of our own frontends, that is this process.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid = _CREDENTIALS.unpack(credentials)[0]
    if pid != os.getpid():
        raise ConnectionError(f"the socket is that of another daemon, pid {pid}")


def _said(text: str) -> str:
    """Return the message of an error response."""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, TypeError, KeyError):
        return text
