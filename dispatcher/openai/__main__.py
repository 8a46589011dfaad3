"""Entry point of the OpenAI frontend's process. It serves until the daemon stops the process or exits.

The daemon opens the listening socket and passes it to the process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from aiohttp import web

from pytriton.dispatcher.http_server.connections import raise_descriptor_limit
from pytriton.dispatcher.openai.client_connection import ClientConnection
from pytriton.dispatcher.openai.keys import KeysError
from pytriton.dispatcher.openai.server import ApiServer
from pytriton.dispatcher.openai.state import METRICS, READY, ApiState

try:  # saves a fifth of the CPU time per token
    import uvloop

    run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run
except ImportError:
    run = asyncio.run

#: Seconds for requests in progress after the daemon has announced its stop.
_GRACE_S = 30.0
_MAX_BYTES = 64 << 20


def main() -> int:
    """Run the frontend; return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--listen", type=int, required=True, help="descriptor of the listening socket"
    )
    parser.add_argument(
        "--state", type=int, required=True, help="descriptor of the daemon's socket"
    )
    arguments = parser.parse_args()
    try:
        run(_serve(socket.socket(fileno=arguments.listen), socket.socket(fileno=arguments.state)))
    except KeysError as error:
        _log(f"cannot start: {error}")
        return 2
    return 0


async def _serve(listener: socket.socket, states: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reader, writer = await asyncio.open_connection(sock=states, limit=_MAX_BYTES)
    decode = msgspec.json.Decoder(ApiState).decode
    frontend = ApiServer(
        decode(await reader.readline()), _log, max_connections=raise_descriptor_limit()
    )
    logging.basicConfig(handlers=[frontend.error_log])
    runner = web.AppRunner(
        frontend.application(), handler_cancellation=True, shutdown_timeout=_GRACE_S
    )
    await runner.setup()
    server = runner.server
    assert server is not None
    watching = asyncio.ensure_future(frontend.connections.watch(server))

    def connected() -> ClientConnection:
        frontend.connections.opened()
        return ClientConnection(
            server,
            frontend.invalid_http,
            loop=loop,
            access_log=None,
            auto_decompress=False,  # `RequestBodies` decompresses after authorization
        )

    listening = await loop.create_server(connected, sock=listener, backlog=4096)
    writer.write(READY)

    async def follow() -> None:
        try:
            while line := await reader.readline():
                if line == METRICS:
                    writer.write(msgspec.json.encode(frontend.meters.collect()) + b"\n")
                else:
                    await frontend.use(decode(line))
        except Exception as error:  # the next process receives the whole state again
            _log(
                f"stopping: cannot receive updates from the daemon: {type(error).__name__}: {error}"
            )
        finally:
            stop.set()  # or the daemon has exited

    following = asyncio.ensure_future(follow())
    await stop.wait()
    for task in (following, watching):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    listening.close()
    await runner.cleanup()
    writer.close()


def _log(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
