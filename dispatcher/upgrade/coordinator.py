"""In-place upgrade: the old version checks compatibility, quiesces, serializes state and execs the new one.

    the next version is asked whether it can take over ──▶ new changes wait, running ones finish
      ──▶ the control socket is suspended ──▶ the state is written ──▶ execve: this process is the next version

Any failure before execve leaves the running version as it was. takeover.py contains the next version's first steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import zmq

from pytriton._host.client_keys import KeyStoreError
from pytriton._host.service_manager import socket_activation
from pytriton._host.service_manager.systemd import Notifier
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.lanes import stats_page
from pytriton.dispatcher.control.control_socket import ControlServer
from pytriton.dispatcher.daemon_status import DaemonStatus, own_version
from pytriton.dispatcher.models.client_bound_models import ClientBoundModels
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.openai.supervisor import OpenAISupervisor
from pytriton.dispatcher.repository.repository_models import RepositoryModels
from pytriton.dispatcher.runtime import upgrade_snapshot
from pytriton.dispatcher.runtime.blocked_signals import blocked_signals
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.upgrade_snapshot import HandOver, WorkerState
from pytriton.dispatcher.server.restart import ServerWatch
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.shutdown import ShutdownController
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.event_log import EventLog
from pytriton.dispatcher.telemetry.events.webhooks import Webhooks
from pytriton.dispatcher.telemetry.http.management import Management
from pytriton.dispatcher.telemetry.requests.collector import RequestCollector
from pytriton.dispatcher.upgrade.rolling_replace import RollingReplacer
from pytriton.dispatcher.upgrade.takeover import SIGNALS, TakeOver, arguments_of, ask
from pytriton.dispatcher.workers.worker import Worker
from pytriton.dispatcher.workers.worker_factory import WorkerFactory

_log = structlog.get_logger(__name__)

#: Poll interval while changes under way finish.
_POLL_INTERVAL_S = 0.05
#: Time to flush the log and event files.
_FLUSH_TIMEOUT_S = 2.0
#: Turns of the event loop after which a pending signal has been handled: the loop reads it in the second turn, after
#: callbacks that are due, and calls the handler in the third.
_TURNS = 3
_MAX_WAIT_S = 86400
_VERSIONS_KEPT = 10


@dataclass
class Parts:
    """The services of a daemon that are handed over, or that must be quiescent during the handover.

    Attributes:
        config: returns the current settings
        regions: prefix of the names of the daemon's shared memory
        locks: descriptors of the locks of the runtime directory and of the state directory
        is_private: whether the daemon belongs to a script
    """

    config: Callable[[], DaemonConfig]
    status: DaemonStatus
    ending: ShutdownController
    control: ControlServer
    server: TritonServer
    server_watch: ServerWatch
    registry: Registry
    repository_models: RepositoryModels
    client_bound_models: ClientBoundModels
    workers: WorkerFactory
    openai: OpenAISupervisor
    management: Management
    requests: RequestCollector
    events: EventLog
    webhooks: Webhooks
    notifier: Notifier
    kill_on_death: KillOnDeath
    renewing: RollingReplacer
    regions: str
    locks: tuple[int, int] = (-1, -1)
    is_private: bool = False


class UpgradeCoordinator:
    """The upgrades of one daemon, on both sides. One runs at a time.

    Args:
        parts: the daemon's services
        execute: replaces the process with another program: path, arguments, environment; as `os.execve`
    """

    def __init__(
        self,
        parts: Parts,
        execute: Callable[[str, list[str], dict[str, str]], object] = os.execve,
    ) -> None:
        self.parts = parts
        self._execute = execute
        self._under_way = False
        self._python = sys.executable
        self._upgrades = 0
        self._versions: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None

    # ── the next version's side ──────────────────────────────────────────────────────────────────

    def adopt(self, handed: TakeOver) -> None:
        """Adopt the state that the previous version of this process left. Nothing is awaited.

        Raises:
            OSError, UnusableHandOver: a part of it is missing.
        """
        parts, state = self.parts, handed.state
        self._upgrades, self._versions = state.upgrades, state.versions
        parts.status.started_at = state.started_at
        parts.workers.serial = state.serials[0]
        parts.server.adopt(state.server)
        parts.server_watch.restarts.update(state.server.restarts)
        parts.registry.accounts.sizes.update(state.sizes)
        adopted = parts.registry.adoption.adopt(state, self._adopt_worker)
        for left, registration in zip(state.registrations, adopted):
            if left.owner is not None:
                parts.client_bound_models.add(registration, left.owner)
        if state.repositories is not None:
            parts.repository_models.adopt(state.repositories)
        if state.openai is not None:
            parts.openai.adopt(state.openai)
        parts.webhooks.adopt(state.unposted)
        self._renewing = asyncio.create_task(parts.renewing.run(state))
        handed.done = True
        parts.events.events.emit(
            kinds.UPGRADED,
            reason=f"from version {state.versions[-1]} to {own_version()}",
            numbers={"upgrades": state.upgrades, "models": len(adopted)},
        )

    def _adopt_worker(
        self, state: WorkerState, spec: messages.ModelSpec, slot: int
    ) -> Worker | None:
        try:
            peer = self.parts.control.worker(state.name)
            return self.parts.workers.adopt(state, spec, slot, peer)
        except OSError as error:
            _log.error(
                "worker lost in the upgrade", model=spec.name, worker=state.name, reason=str(error)
            )
            return None

    # ── the running version's side ───────────────────────────────────────────────────────────────

    async def prepare(self, request: messages.Upgrade) -> None:
        """Check that the next version can take over, and make changes wait. `begin` must follow.

        Raises:
            RemoteFailure: an upgrade is not possible, or not now; the text says why. Nothing has changed.
        """
        if not 0 <= request.wait_s <= _MAX_WAIT_S:
            text = f"{request.wait_s} is not between 0 and {_MAX_WAIT_S} s"
            raise RemoteFailure(ErrorKind.INVALID, text)
        if self._under_way:
            raise RemoteFailure(ErrorKind.UNAVAILABLE, "the daemon is being upgraded already")
        self._under_way = True
        try:
            self._refuse_impossible()
            await self._until(self._why_server_not_quiescent, request.wait_s)
            can = await self._can_now(request.python or sys.executable)
            self.parts.control.hold()
            # If models are suspended and resumed all the time, there would be no quiescent moment.
            self.parts.registry.adaptations.hold()
            self.parts.repository_models.watch.hold()
            await self.parts.registry.prestarted.hold()
            await self.parts.workers.forks.hold()
            await self._until(self._why_not_quiescent, request.wait_s)
            if not can:  # nothing changes any more, so the answer stays valid
                await self._ask(request.python or sys.executable)
            self._refuse_impossible()  # something may have changed since
        except BaseException as error:
            self._go_on(error.text if isinstance(error, RemoteFailure) else "it was cancelled")
            raise

    def begin(self, request: messages.Upgrade) -> None:
        """Start to become the next version in a task. The client that requested it has been answered."""
        self._task = asyncio.create_task(self._go(request))

    def _go_on(self, why: str) -> None:
        """Stay this version."""
        self.parts.control.release()
        self.parts.registry.prestarted.release()
        self.parts.workers.forks.release()
        self._releasing = asyncio.create_task(self.parts.registry.adaptations.release())
        self.parts.repository_models.watch.release()
        self._under_way = False
        self.parts.events.events.emit(kinds.UPGRADE_FAILED, reason=why)

    # ── whether it can be ────────────────────────────────────────────────────────────────────────

    def _refuse_impossible(self) -> None:
        """Raise RemoteFailure if this daemon has state that cannot be handed over."""
        parts = self.parts
        why = ""
        hosted = [one.spec.name for one in parts.registry if one.registrant is not None]
        if parts.status.phase != "ready":
            why = f"it is {parts.status.phase}"
        elif not parts.server.can_hand_over:
            why = "it needs the native frontend and the compiled proxy (pytriton-daemon doctor)"
        elif hosted:
            why = f"models run in threads of their registrants: {', '.join(hosted)}"
        elif parts.is_private:
            why = "it belongs to a script"
        if why:
            text = (
                f"the daemon cannot be upgraded while it runs: {why}. Use `pytriton-daemon restart`"
            )
            raise RemoteFailure(ErrorKind.INVALID, text)

    def _why_not_quiescent(self) -> str:
        """Describe a change under way that prevents a handover; "" if there is none."""
        parts = self.parts
        if parts.ending.asked.is_set():
            return "the daemon is stopping"
        if parts.status.phase != "ready":
            return f"the daemon is {parts.status.phase}"
        if parts.control.changing:
            return "a client is changing something"
        if why := self._why_server_not_quiescent():
            return why
        if not parts.openai.is_quiescent:
            return "the OpenAI frontend is being started or updated"
        if not parts.repository_models.is_quiescent:
            return "a model of a repository is being loaded or unloaded"
        if parts.client_bound_models.ending:
            return "a client-bound model is being unregistered"
        if not parts.registry.prestarted.is_quiescent:
            return "a prestarted worker is being ended"
        if not parts.workers.forks.is_quiescent:
            return "a fork server is being ended"
        return parts.registry.adoption.why_not_quiescent()

    def _why_server_not_quiescent(self) -> str:
        server = self.parts.server
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

    async def _can_now(self, python: str) -> bool:
        """Return whether the next version could take over; False if the reason may be a change of models under way.

        Raises:
            RemoteFailure: it could not for another reason, or does not run.
        """
        served = [*self.parts.registry]
        try:
            await self._ask(python)
        except RemoteFailure:
            if served == [*self.parts.registry]:
                raise
            return False
        return True

    async def _ask(self, python: str) -> None:
        """Ask the next version whether it could take over. Raises RemoteFailure if it could not, or does not run."""
        report = await ask(python, upgrade_snapshot.encode(self._state()))
        if not report.can:
            text = f"version {report.version} cannot take over: {report.why}"
            raise RemoteFailure(ErrorKind.INVALID, text)
        self._python = python
        _log.info("the next version can take over", version=report.version, python=python)

    # ── the hand-over ────────────────────────────────────────────────────────────────────────────

    async def _go(self, request: messages.Upgrade) -> None:
        parts = self.parts
        why, is_silent = "", False
        try:
            await self._until(self._why_not_quiescent, request.wait_s)
            is_silent = True
            parts.notifier.reloading()
            await parts.control.suspend()
            await self._until_written()
            await self._become_next()
        except RemoteFailure as failure:
            why = failure.text
        except Exception as error:
            _log.exception("the daemon was not upgraded")
            why = f"{type(error).__name__}: {error}"
        try:
            if is_silent:
                self._speak_again()
        finally:
            self._go_on(why)

    def _speak_again(self) -> None:
        """Resume the control socket; without TCP if its address has been taken in the meantime."""
        parts, address = self.parts, self.parts.status.control_tcp
        parts.control.bind()
        try:
            if address:
                parts.control.listen_tcp(address[len("tcp://") :])
        except (KeyStoreError, zmq.ZMQError) as error:
            parts.status.lose_tcp(address, str(error))
        parts.notifier.ready(parts.status.for_service_manager().text)

    async def _until_written(self) -> None:
        """Wait until the log and event files are flushed, or the disk has proved too slow."""
        deadline = asyncio.get_running_loop().time() + _FLUSH_TIMEOUT_S
        while self.parts.events.has_pending or self.parts.requests.has_pending:
            if asyncio.get_running_loop().time() > deadline:
                _log.warning("some events or access logs may be missing: the disk is slow")
                return
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _become_next(self) -> None:
        """Execute the next version, unless a change has begun. Returns only by an exception.

        Raises:
            RemoteFailure: a change is under way.
        """
        with blocked_signals(SIGNALS) as leave_signals:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            self._refuse_impossible()
            if why := self._why_not_quiescent():
                raise RemoteFailure(ErrorKind.UNAVAILABLE, why)
            self._execute_next(leave_signals)  # nothing may be awaited before this

    def _execute_next(self, leave_signals: Callable[[], None]) -> None:
        state = self._state()
        document = upgrade_snapshot.in_memory(upgrade_snapshot.encode(state))
        environment = {
            **os.environ,
            **self.parts.notifier.variables,
            **socket_activation.variables(),
        }
        arguments = [self._python, *arguments_of("--take-over", str(document))]
        folder = ""
        with contextlib.suppress(OSError):  # already removed
            folder = os.getcwd()
        try:
            kept = [
                document,
                *upgrade_snapshot.descriptors(state),
                *socket_activation.descriptors(),
            ]
            with upgrade_snapshot.inherited(kept):
                os.chdir("/")  # so that nothing is imported from the current directory
                leave_signals()
                self._execute(self._python, arguments, environment)
        finally:
            if folder:
                with contextlib.suppress(OSError):
                    os.chdir(folder)
            os.close(document)

    def _state(self) -> HandOver:
        """Return the state for the next version. The daemon must be quiescent."""
        parts, registry = self.parts, self.parts.registry
        return HandOver(
            config=parts.config().to_json(),
            upgrades=self._upgrades + 1,
            versions=[*self._versions, own_version()][-_VERSIONS_KEPT:],
            protocol=messages.PROTOCOL,
            page=stats_page.LAYOUT,
            started_at=parts.status.started_at,
            locks=parts.locks,
            control=parts.control.listener,
            control_tcp=parts.status.control_tcp,
            helper=(parts.kill_on_death.pid, parts.kill_on_death.pipe),
            regions=parts.regions,
            serials=(parts.workers.serial, registry.adoption.serial),
            server=parts.server.hand_over(parts.server_watch.restarts),
            registrations=registry.adoption.hand_over(parts.client_bound_models.owner_of),
            counters=[
                counters.hand_over(name) for name, counters in registry.counter_registry.items()
            ],
            management=parts.management.descriptors,
            beginnings=parts.management.start_times,
            openai=parts.openai.hand_over(),
            unposted=parts.webhooks.unposted(),
            events=parts.events.serial,
            sizes=dict(registry.accounts.sizes),
            repositories=parts.repository_models.hand_over(),
            lazy=[entry.spec.name for entry in registry.restoring.lazy_entries()],
        )
