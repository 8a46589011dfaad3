"""In-place upgrade: the old version checks compatibility, quiesces, serializes state and execs the new one.

    the next version reports whether it can take over ──▶ new changes wait, running ones finish
      ──▶ the control socket is suspended ──▶ the state is written ──▶ execve: this process is the next version

If anything fails before execve, the running version continues. takeover.py contains the first steps of the next
version.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable

import structlog
import zmq

from pytriton._host.client_keys import KeyStoreError
from pytriton._host.service_manager import socket_activation
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.lanes import stats_page
from pytriton.dispatcher.daemon_status import own_version
from pytriton.dispatcher.runtime.blocked_signals import blocked_signals
from pytriton.dispatcher.services import Services
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.upgrade import snapshot
from pytriton.dispatcher.upgrade.rolling_replace import RollingReplacer
from pytriton.dispatcher.upgrade.snapshot import HandOver, WorkerState
from pytriton.dispatcher.upgrade.takeover import SIGNALS, TakeOver, arguments_of, ask_next_version
from pytriton.dispatcher.workers.worker import Worker

_log = structlog.get_logger(__name__)

#: Poll interval while changes in progress finish, in seconds.
_POLL_INTERVAL_S = 0.05
#: Time to flush the event log and the access logs, in seconds.
_FLUSH_TIMEOUT_S = 2.0
#: Number of turns of the event loop after which a pending signal has been handled: the loop reads the signal in the
#: second turn, after callbacks that are due, and calls its handler in the third.
_TURNS = 3
_MAX_WAIT_S = 86400
_VERSIONS_KEPT = 10


class UpgradeCoordinator:
    """Coordinates a daemon's upgrades: hands over to the next version, and adopts the state of the previous version.

    Args:
        services: services of the daemon
        locks: descriptors of the locks of the runtime directory and of the state directory
        is_private: whether the daemon belongs to a script
        execute: replaces this process with another program, like `os.execve` (path, arguments, environment)
    """

    def __init__(
        self,
        services: Services,
        *,
        locks: tuple[int, int],
        is_private: bool = False,
        execute: Callable[[str, list[str], dict[str, str]], object] = os.execve,
    ) -> None:
        self._services = services
        self._locks = locks
        self._is_private = is_private
        self._execute = execute
        self._under_way = False
        self._python = sys.executable
        self._upgrades = 0
        self._versions: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._replace_task: asyncio.Task[None] | None = None
        self._release_task: asyncio.Task[None] | None = None

    # ── the next version's side ──────────────────────────────────────────────────────────────────

    def adopt(self, takeover: TakeOver) -> None:
        """Adopt the state of this process's previous version, in a single turn of the event loop.

        Raises:
            OSError, UnusableHandOver: part of the state is missing or cannot be adopted
        """
        services, state = self._services, takeover.state
        self._upgrades, self._versions = state.upgrades, state.versions
        services.status.started_at = state.started_at
        services.workers.serial = state.serials[0]
        services.server.adopt(state.server)
        services.server_watch.restarts.update(state.server.restarts)
        services.registry.accounts.sizes.update(state.sizes)
        adopted = services.registry.adopt(state, self._adopt_worker)
        for left, registration in zip(state.registrations, adopted):
            if left.owner is not None:
                services.client_bound_models.add(registration, left.owner)
        services.repository_models.adopt(state.repositories)
        if state.openai is not None:
            services.openai.adopt(state.openai)
        services.webhooks.adopt(state.unposted)
        replacer = RollingReplacer(services.registry.served, services.settings.replace_server)
        self._replace_task = asyncio.create_task(replacer.run(state))
        takeover.done = True
        services.events.emit(
            kinds.UPGRADED,
            reason=f"from version {state.versions[-1]} to {own_version()}",
            numbers={"upgrades": state.upgrades, "models": len(adopted)},
        )

    def _adopt_worker(
        self, state: WorkerState, spec: messages.ModelSpec, slot: int
    ) -> Worker | None:
        try:
            peer = self._services.control.worker(state.name)
            return self._services.workers.adopt(state, spec, slot, peer)
        except OSError as error:
            _log.error(
                "worker lost during the upgrade",
                model=spec.name,
                worker=state.name,
                reason=str(error),
            )
            return None

    # ── the running version's side ───────────────────────────────────────────────────────────────

    async def prepare(self, request: messages.Upgrade) -> None:
        """Check that the next version can take over, and suspend all changes. Call `begin` afterwards.

        Raises:
            RemoteFailure: an upgrade is impossible in general or at the moment; the message says why. Changes continue.
        """
        if not 0 <= request.wait_s <= _MAX_WAIT_S:
            text = f"{request.wait_s} is not between 0 and {_MAX_WAIT_S} s"
            raise RemoteFailure(ErrorKind.INVALID, text)
        if self._under_way:
            raise RemoteFailure(ErrorKind.UNAVAILABLE, "the daemon is already being upgraded")
        self._under_way = True
        try:
            self._refuse_impossible()
            await self._until(self._why_server_not_quiescent, request.wait_s)
            can = await self._is_compatible(request.python or sys.executable)
            self._services.control.hold()
            # If models keep being suspended and resumed, the daemon would never be quiescent.
            self._services.registry.background_changes.hold()
            self._services.repository_models.watch.hold()
            await self._services.registry.prestarted.hold()
            await self._services.workers.forks.hold()
            await self._until(self._why_not_quiescent, request.wait_s)
            if not can:  # nothing can change now, so the answer remains valid
                await self._check_compatibility(request.python or sys.executable)
            self._refuse_impossible()  # something may have changed since the first check
        except BaseException as error:
            self._resume(error.text if isinstance(error, RemoteFailure) else "it was cancelled")
            raise

    def begin(self, request: messages.Upgrade) -> None:
        """Start the upgrade in a background task, after the client that requested it has been answered."""
        self._task = asyncio.create_task(self._upgrade(request))

    def _resume(self, why: str) -> None:
        """Abandon the upgrade: resume changes, and emit an event with the reason."""
        self._services.control.release()
        self._services.registry.prestarted.release()
        self._services.workers.forks.release()
        self._release_task = asyncio.create_task(
            self._services.registry.background_changes.release()
        )
        self._services.repository_models.watch.release()
        self._under_way = False
        self._services.events.emit(kinds.UPGRADE_FAILED, reason=why)

    # ── whether an upgrade is possible ───────────────────────────────────────────────────────────

    def _refuse_impossible(self) -> None:
        """Raise RemoteFailure if this daemon cannot be handed over in its current state."""
        services = self._services
        why = ""
        hosted = [one.spec.name for one in services.registry.served if one.registrant is not None]
        if services.status.phase != "ready":
            why = f"it is {services.status.phase}"
        elif not services.server.can_hand_over:
            why = "upgrades need the native frontend and the compiled proxy (see pytriton-daemon doctor)"
        elif hosted:
            why = f"models run in threads of their registrants: {', '.join(hosted)}"
        elif self._is_private:
            why = "it belongs to a script"
        if why:
            text = (
                f"the daemon cannot be upgraded while it runs: {why}. Use `pytriton-daemon restart`"
            )
            raise RemoteFailure(ErrorKind.INVALID, text)

    def _why_not_quiescent(self) -> str:
        """Describe a change in progress that prevents a hand-over; "" if there is none."""
        services = self._services
        if services.shutdown.requested.is_set():
            return "the daemon is stopping"
        if services.status.phase != "ready":
            return f"the daemon is {services.status.phase}"
        if services.control.changing:
            return "a client is changing something"
        if why := self._why_server_not_quiescent():
            return why
        if not services.openai.is_quiescent:
            return "the OpenAI frontend is being started or updated"
        if not services.repository_models.is_quiescent:
            return "a model of a repository is being loaded or unloaded"
        if services.client_bound_models.ending:
            return "a client-bound model is being unregistered"
        if not services.registry.prestarted.is_quiescent:
            return "a prestarted worker is being stopped"
        if not services.workers.forks.is_quiescent:
            return "a fork server is being stopped"
        if services.workers.unreported:
            return "a worker has exited because of an unrecoverable error"
        return services.registry.why_not_quiescent()

    def _why_server_not_quiescent(self) -> str:
        server = self._services.server
        if server.is_quiescent:
            return ""
        if server.has_single_process:
            return "a tritonserver that was replaced still has requests: `status` shows until when"
        return "tritonserver is being started or replaced"

    async def _until(self, why_not_quiescent: Callable[[], str], wait_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + wait_s
        while why := why_not_quiescent():
            if asyncio.get_running_loop().time() > deadline:
                text = f"the daemon was not upgraded: after {wait_s:g} s, {why}. Try again"
                raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _is_compatible(self, python: str) -> bool:
        """Return whether the next version can take over.

        Return False if the check has to be repeated, because models changed in the meantime.

        Raises:
            RemoteFailure: the next version cannot take over, or does not run
        """
        served = [*self._services.registry.served]
        try:
            await self._check_compatibility(python)
        except RemoteFailure:
            if served == [*self._services.registry.served]:
                raise
            return False
        return True

    async def _check_compatibility(self, python: str) -> None:
        """Ask the next version whether it can take over. Raises RemoteFailure if it cannot, or fails to run."""
        report = await ask_next_version(python, snapshot.encode(self._state()))
        if not report.can:
            text = f"version {report.version} cannot take over: {report.why}"
            raise RemoteFailure(ErrorKind.INVALID, text)
        self._python = python
        _log.info("the next version can take over", version=report.version, python=python)

    # ── the hand-over ────────────────────────────────────────────────────────────────────────────

    async def _upgrade(self, request: messages.Upgrade) -> None:
        services = self._services
        why, is_suspended = "", False
        try:
            await self._until(self._why_not_quiescent, request.wait_s)
            is_suspended = True
            services.notifier.reloading()
            await services.control.suspend()
            await self._until_flushed()
            await self._exec_next_version()
        except RemoteFailure as failure:
            why = failure.text
        except Exception as error:
            _log.exception("the daemon was not upgraded")
            why = f"{type(error).__name__}: {error}"
        try:
            if is_suspended:
                self._reopen_control_socket()
        finally:
            self._resume(why)

    def _reopen_control_socket(self) -> None:
        """Reopen the control socket. If the daemon can no longer listen on its TCP address, reopen the socket without
        TCP.
        """
        services, address = self._services, self._services.status.control_tcp
        services.control.bind()
        try:
            if address:
                services.control.listen_tcp(address[len("tcp://") :])
        except (KeyStoreError, zmq.ZMQError) as error:
            services.status.report_tcp_lost(address, str(error))
        services.notifier.ready(services.status.for_service_manager().text)

    async def _until_flushed(self) -> None:
        """Wait until the event log and the access logs are flushed. If the disk is too slow, log a warning and
        continue.
        """
        deadline = asyncio.get_running_loop().time() + _FLUSH_TIMEOUT_S
        while self._services.event_log.has_pending or self._services.requests.has_pending:
            if asyncio.get_running_loop().time() > deadline:
                _log.warning("some events or access log entries may be lost: the disk is slow")
                return
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _exec_next_version(self) -> None:
        """Execute the next version. Never returns; raises an exception on failure.

        Raises:
            RemoteFailure: a change is in progress
        """
        with blocked_signals(SIGNALS) as leave_signals:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            self._refuse_impossible()
            if why := self._why_not_quiescent():
                raise RemoteFailure(ErrorKind.UNAVAILABLE, why)
            self._exec(leave_signals)  # must not await anything before this: changes could begin

    def _exec(self, leave_signals: Callable[[], None]) -> None:
        state = self._state()
        document = snapshot.in_memory(snapshot.encode(state))
        environment = {
            **os.environ,
            **self._services.notifier.variables,
            **socket_activation.variables(),
        }
        arguments = [self._python, *arguments_of("--take-over", str(document))]
        folder = ""
        with contextlib.suppress(OSError):  # the directory has been removed
            folder = os.getcwd()
        try:
            inherited = [
                document,
                *snapshot.descriptors(state),
                *socket_activation.descriptors(),
            ]
            with snapshot.inherited(inherited):
                os.chdir("/")  # so that Python imports nothing from the current directory
                leave_signals()
                self._execute(self._python, arguments, environment)
        finally:
            if folder:
                with contextlib.suppress(OSError):
                    os.chdir(folder)
            os.close(document)

    def _state(self) -> HandOver:
        """Return the state for the next version. The daemon must be quiescent."""
        services, registry = self._services, self._services.registry
        return HandOver(
            config=services.config.to_json(),
            upgrades=self._upgrades + 1,
            versions=[*self._versions, own_version()][-_VERSIONS_KEPT:],
            protocol=messages.PROTOCOL,
            page=stats_page.LAYOUT,
            started_at=services.status.started_at,
            locks=self._locks,
            control=services.control.listener,
            control_tcp=services.status.control_tcp,
            helper=(services.kill_on_death.pid, services.kill_on_death.pipe),
            regions=services.regions,
            serials=(services.workers.serial, registry.serial),
            server=services.server.hand_over(services.server_watch.restarts),
            registrations=registry.hand_over(services.client_bound_models.owner_of),
            counters=[
                counters.hand_over(name)
                for name, counters in registry.served.counter_registry.items()
            ],
            management=services.management.descriptors,
            beginnings=services.management.start_times,
            openai=services.openai.hand_over(),
            unposted=services.webhooks.unposted(),
            events=services.event_log.serial,
            sizes=dict(registry.accounts.sizes),
            repositories=services.repository_models.hand_over(),
            lazy=[entry.spec.name for entry in registry.restoring.lazy_entries()],
        )
