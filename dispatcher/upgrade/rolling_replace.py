"""After an upgrade, replaces the processes that still speak the protocol of the previous version, one by one.

    a worker ──▶ its replacement loads and takes over its lanes, and it exits ──▶ the next worker ──▶ finally tritonserver

This version still supports the previous protocol (`PROTOCOLS` in upgrade/snapshot.py), so there is no hurry and no
request fails. A later version that does not support it refuses an upgrade until the replacement is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.models.served_models import ServedModels
from pytriton.dispatcher.upgrade.snapshot import HandOver

_log = structlog.get_logger(__name__)

#: Interval between attempts to replace tritonserver, for example while it has sequences in progress, in seconds.
_RETRY_INTERVAL_S = 5.0
#: How long to wait for one worker before the next is replaced as well, in seconds. Its replacement may take longer, for
#: example for lack of memory.
_MAX_DELAY_S = 60.0


class RollingReplacer:
    """Replaces the workers and the tritonserver that the previous version of this process started.

    Args:
        served: the registrations
        replace_server: replaces the running tritonserver, given the reason
    """

    def __init__(
        self, served: ServedModels, replace_server: Callable[[str], Awaitable[object]]
    ) -> None:
        self._served = served
        self._replace_server = replace_server

    async def run(self, state: HandOver) -> None:
        """Replace all processes in `state` that speak an old protocol, one by one."""
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
        """Replace tritonserver. Retry while it is starting or has sequences in progress."""
        reported = ""
        while True:
            try:
                await self._replace_server(why)
                return
            except RemoteFailure as failure:
                if failure.kind is not ErrorKind.UNAVAILABLE:
                    raise
                if failure.text != reported:
                    _log.warning(
                        "could not replace tritonserver yet, retrying", reason=failure.text
                    )
                reported = failure.text
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _replace(self, name: str, protocol: int) -> None:
        try:
            _, worker = self._served.worker(name)
        except RemoteFailure:  # it has exited, or its model is gone
            return
        if worker.alive:
            reason = messages.RecycleReason.PROTOCOL
            worker.request_recycle(messages.WorkerRecycleDue(name, reason, _why(protocol)))
            await asyncio.wait([worker.exited], timeout=_MAX_DELAY_S)


def _workers(state: HandOver) -> list[tuple[str, int]]:
    supervised = [one.worker for each in state.registrations for one in each.pool.supervised]
    return [(worker.name, worker.protocol) for worker in supervised if worker is not None]


def _why(protocol: int) -> str:
    return (
        f"speaks protocol {protocol} of a previous version; this version speaks {messages.PROTOCOL}"
    )
