"""The daemon's own client of tritonserver, where the server is only a socket."""

from __future__ import annotations

import asyncio
import socket

from pytriton.dispatcher.settings.declarations import DaemonConfig
from pytriton.dispatcher.triton.admin_client import AdminClient


def test_a_load_fails_when_the_connection_is_closed_under_it() -> None:
    """It fails, rather than look as if its own task were cancelled: a client waits for the reason."""

    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            port = server.getsockname()[1]
            client = AdminClient(DaemonConfig(), port, port)
            load = asyncio.create_task(client.load("model", "{}"))
            connection, _ = await asyncio.get_running_loop().sock_accept(server)
            with connection:  # and never answer
                await client.close()
                done, _ = await asyncio.wait([load], timeout=30)
        assert done
        assert not load.cancelled()
        assert load.exception() is not None

    asyncio.run(scene())
