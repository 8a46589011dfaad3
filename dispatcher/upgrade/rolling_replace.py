"""Rolling replacement after an upgrade to another protocol: processes with the old protocol are replaced one by one.

    a worker ──▶ its replacement loads, takes its lanes, and it exits ──▶ the next worker ──▶ finally tritonserver

The next version supports the previous protocol (`PROTOCOLS` in upgrade/snapshot.py), so this need not be fast,
and no request fails. A later version may no longer support the old protocol, and then refuses the upgrade.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.upgrade.snapshot import HandOver

_log = structlog.get_logger(__name__)

#: Retry interval for replacing tritonserver, for example while it has sequences in progress.
_RETRY_INTERVAL_S = 5.0
#: How long a worker that cannot be replaced (lack of memory, say) delays the next one. It is retried alongside.
_MAX_DELAY_S = 60.0


class RollingReplacer:
    """Replaces the workers and the tritonserver that a previous version of this process started.

    Args:
        registry: the models
        replace_server: replaces the running tritonserver; its argument is the reason
    """

    def __init__(
        self, registry: Registry, replace_server: Callable[[str], Awaitable[object]]
    ) -> None:
        self._registry = registry
        self._replace_server = replace_server

    async def run(self, state: HandOver) -> None:
        """Replace the processes that the previous version left."""
        try:
            for name, protocol in _workers(state):
                if protocol != messages.PROTOCOL:
                    await self._replace(name, protocol)
            if state.server.protocol != messages.PROTOCOL:
                await self._until_server_replaced(f"its proxies: {_why(state.server.protocol)}")
        except RemoteFailure as failure:
            _log.warning("proxies of the previous version keep serving", reason=failure.text)
        except Exception:
            _log.exception("internal error: workers of the previous version keep serving")

    async def _until_server_replaced(self, why: str) -> None:
        """Replace tritonserver. Retry while it has sequences in progress or is starting."""
        reported = ""
        while True:
            try:
                await self._replace_server(why)
                return
            except RemoteFailure as failure:
                if failure.kind is not ErrorKind.UNAVAILABLE:
                    raise
                if failure.text != reported:
                    _log.warning("tritonserver is not replaced yet", reason=failure.text)
                reported = failure.text
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _replace(self, name: str, protocol: int) -> None:
        try:
            _, worker = self._registry.worker(name)
        except RemoteFailure:  # it has exited, and its model may also be gone
            return
        if worker.alive:
            worker.request_recycle(_why(protocol))
            await asyncio.wait([worker.exited], timeout=_MAX_DELAY_S)


def _workers(state: HandOver) -> list[tuple[str, int]]:
    supervised = [one.worker for each in state.registrations for one in each.pool.supervised]
    return [(worker.name, worker.protocol) for worker in supervised if worker is not None]


def _why(protocol: int) -> str:
    return f"protocol {protocol} of a previous version, and this one speaks {messages.PROTOCOL}"
