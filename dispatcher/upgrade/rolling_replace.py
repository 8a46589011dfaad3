"""Replacements after an upgrade to another protocol: what still speaks the former one goes, one after the other.

    a worker ──▶ another one loads beside it, takes its lanes, and it ends ──▶ the next worker ──▶ at last tritonserver

The next version serves the former protocol (`PROTOCOLS` in runtime/upgrade_snapshot.py), so nothing is in a hurry, and no request
fails. The version after that may not serve it any more, and refuses the upgrade then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.runtime.upgrade_snapshot import HandOver

_log = structlog.get_logger(__name__)

#: Between two tries to replace tritonserver, while it has sequences in progress, say.
_TRY_AGAIN_S = 5.0
#: Seconds that a worker which cannot be replaced (lack of memory, say) holds up the next one; it is tried on beside.
_PATIENCE_S = 60.0


class RollingReplacer:
    """Replaces workers, and tritonserver, that a former version of this process has started.

    Args:
        registry: the models
        replace_server: has another tritonserver take the place of the one that runs; gets the reason
    """

    def __init__(
        self, registry: Registry, replace_server: Callable[[str], Awaitable[object]]
    ) -> None:
        self._registry = registry
        self._replace_server = replace_server

    async def run(self, state: HandOver) -> None:
        """Replace those that the former version has left."""
        try:
            for name, protocol in _workers(state):
                if protocol != messages.PROTOCOL:
                    await self._replace(name, protocol)
            if state.server.protocol != messages.PROTOCOL:
                await self._until_server_replaced(f"its proxies: {_why(state.server.protocol)}")
        except RemoteFailure as failure:
            _log.warning("proxies of the former version serve on", reason=failure.text)
        except Exception:
            _log.exception("a fault of the daemon: workers of the former version serve on")

    async def _until_server_replaced(self, why: str) -> None:
        """Replace tritonserver; try again while it has sequences in progress, or is being started."""
        told = ""
        while True:
            try:
                await self._replace_server(why)
                return
            except RemoteFailure as failure:
                if failure.kind is not ErrorKind.UNAVAILABLE:
                    raise
                if failure.text != told:
                    _log.warning("tritonserver is not replaced yet", reason=failure.text)
                told = failure.text
            await asyncio.sleep(_TRY_AGAIN_S)

    async def _replace(self, name: str, protocol: int) -> None:
        try:
            _, worker = self._registry.worker(name)
        except RemoteFailure:  # it has ended meanwhile, and its model perhaps, too
            return
        if worker.alive:
            worker.is_spent(_why(protocol))
            await asyncio.wait([worker.exited], timeout=_PATIENCE_S)


def _workers(state: HandOver) -> list[tuple[str, int]]:
    supervised = [one.worker for each in state.registrations for one in each.pool.supervised]
    return [(worker.name, worker.protocol) for worker in supervised if worker is not None]


def _why(protocol: int) -> str:
    return f"protocol {protocol} of a former version, and this one speaks {messages.PROTOCOL}"
