"""An HTTP server in a thread of its own, with an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import structlog
from aiohttp import web

from pytriton.dispatcher.http_server.complaints import Complaints

__all__ = ["BACKLOG", "ServerThread"]

_log = structlog.get_logger(__name__)

BACKLOG = 128
#: Seconds that a connection may idle; that requests under way have when it is stopped; and all of it.
_IDLE_S = 5.0
_GRACE_S = 4.0
_STOP_S = 5.0


class ServerThread:
    """Answers on sockets that listen, from now on.

    Args:
        routes: what it answers
        sockets: are closed when it is stopped
        tls: None for plain HTTP
    """

    def __init__(
        self,
        routes: Sequence[web.RouteDef],
        sockets: Sequence[socket.socket],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._routes = routes
        self._sockets = sockets
        self._tls = tls
        self._stop: Callable[[], object] | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operations", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering, and wait for what is under way, for a while. For another thread."""
        self._begun.wait(_STOP_S)
        with suppress(RuntimeError):  # its loop has ended by itself
            if self._stop is not None:
                self._stop()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            _log.exception("the operations server ended")
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        stopping: asyncio.Future[None] = loop.create_future()
        self._stop = partial(loop.call_soon_threadsafe, stopping.cancel)
        self._begun.set()
        app = web.Application()
        app.add_routes(self._routes)
        runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,  # who reads a body inflates it, once it is known who asks
            logger=_quiet_logger(),
            keepalive_timeout=_IDLE_S,
            shutdown_timeout=_GRACE_S,
        )
        await runner.setup()
        for one in self._sockets:
            await web.SockSite(runner, one, ssl_context=self._tls, backlog=BACKLOG).start()
        await asyncio.wait([stopping])
        await runner.cleanup()


def _quiet_logger() -> logging.Logger:
    """Return the logger for what aiohttp says of requests: it quotes them, and with them tokens."""
    logger = logging.getLogger(__name__)
    logger.propagate = False
    logger.handlers[:] = [Complaints(lambda text: _log.warning("operations server", said=text))]
    return logger
