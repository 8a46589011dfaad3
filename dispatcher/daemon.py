"""The dispatcher: owns the runtime directory, tritonserver and all workers, and answers the control socket.

Its lifecycle, top to bottom::

    run.run        lock the runtime directory, find tritonserver, open the state directory
    Daemon.main    control socket ▶ tritonserver ▶ ready ▶ (serve until asked to stop) ▶ stop
    stop           refuse registrations ▶ unload all models (in-flight batches are answered, up to the grace period)
                   ▶ stop tritonserver ▶ end the workers ▶ close the control socket

The first SIGTERM or SIGINT shuts down gracefully, the second exits at once; so does SIGINT during a shutdown.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence

import structlog
import zmq

from pytriton._host.client_keys import KeyStoreError
from pytriton._host.ports import PortError
from pytriton._host.service_manager import socket_activation
from pytriton._host.settings import start_flags
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.exit_codes import ExitCode
from pytriton.dispatcher import handlers
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.control.peers import user_name
from pytriton.dispatcher.daemon_status import own_version
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.server import cloud_frontends
from pytriton.dispatcher.server.restart import start_server
from pytriton.dispatcher.server.server_process import ServerStartError
from pytriton.dispatcher.services import Services
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.upgrade.takeover import SIGNALS

_log = structlog.get_logger(__name__)

OnReady = Callable[[messages.Status], None]
#: Extra time for batches that are answered at the very end of the grace period.
_LATE_ANSWERS_S = 1.0


class Daemon(Services):
    """One dispatcher in one runtime directory."""

    async def main(self, on_ready: OnReady | None) -> int:
        """Run the daemon until it has stopped. Return its exit code."""
        handed = self._origin.handed
        if handed is None:
            who, why = f"user {user_name(os.getuid())}", self._origin.because
            self.events.emit(kinds.STARTED, who=who, reason=why, numbers={"pid": os.getpid()})
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ending.signalled, signal.Signals(number).name)
        adopted = () if handed is None else (handed.state.management, handed.state.beginnings)
        refused = self._listen_tcp() or self._management.open(*adopted)
        if refused is not None:
            await self._control.close()
            return refused
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        # Signals that arrived during an upgrade have been blocked until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._control.bind(None if handed is None else handed.state.control)
        await self.client_requests.start()
        control_task = asyncio.create_task(self._control.serve())
        self._status.vital.append(control_task)
        notify_task = asyncio.create_task(self._notifier.keep(self._status.for_service_manager))
        lag_task = asyncio.create_task(self.metrics.lag.run())
        collector_task = asyncio.create_task(self.requests.run())
        try:
            if handed is None:
                await self._start_server()
            else:
                self.upgrade.adopt(handed)
                lazy = frozenset(handed.state.lazy)
                self.registry.server_starts.load_lazily(lambda spec: spec.name in lazy)
        except (ServerStartError, PortError) as error:
            in_use = isinstance(error, PortError)
            code = ExitCode.PORT_IN_USE if in_use else ExitCode.SERVER_FAILED
            self.ending.never_served(str(error), code)
            await self.registry.stop()
        else:
            await self._serve_until_stopped(on_ready)
        await self.client_requests.close()
        await self._server.stop()
        await self._workers.forks.hold()
        control_task.cancel()
        await self._control.close()
        notify_task.cancel()
        lag_task.cancel()
        collector_task.cancel()
        self.requests.close()
        await self._management.close()
        self._kill_on_death.close()
        self.memory.close()
        self.ending.write_down()
        self.event_log.close()
        self._webhooks.close()
        return self.ending.code

    async def _start_server(self) -> None:
        """Start tritonserver with the models that it can load at once. Raises ServerStartError, PortError."""
        starts = self.registry.server_starts
        starts.deploy_suspended_models(self._may_load_lazily)
        loaded = await start_server(self._server, self.config, starts.preload_at_first_start)
        await starts.have_loaded(loaded)
        self._server_watch.emit_started()

    def _may_load_lazily(self, spec: messages.ModelSpec) -> bool:
        """Return whether a model is only used by clients of tritonserver's frontend.

        Always False with a model repository: its ensembles and backends may call any other model.
        """
        queues_requests = self._frontend.queues_requests and self._server.proxy_is_native
        vertex = cloud_frontends.vertex_model(self.config.tritonserver_options)
        return queues_requests and not self.config.model_repository and spec.name != vertex

    def _listen_tcp(self) -> ExitCode | None:
        """Listen for clients with a key, if configured. Return an exit code on failure."""
        address = self.config.control_tcp
        if address is None:
            return None
        handed = self._origin.handed
        if handed is not None and handed.state.control_tcp:  # keep the previous version's port
            address = handed.state.control_tcp[len("tcp://") :]
        try:
            self._status.control_tcp = self._control.listen_tcp(address)
        except (KeyStoreError, zmq.ZMQError) as error:
            if handed is not None:  # keep serving without it
                self._status.lose_tcp(address, str(error))
                return None
            _log.error("cannot listen", control_tcp=address, reason=str(error))
            in_use = getattr(error, "errno", None) == errno.EADDRINUSE
            return ExitCode.PORT_IN_USE if in_use else ExitCode.USAGE
        return None

    async def _serve_until_stopped(self, on_ready: OnReady | None) -> None:
        """Serve from the moment tritonserver is up until all models are unloaded."""
        self._status.phase = "draining" if self.registry.refusal else "ready"
        own_version()  # cache it now: another version may be installed later
        if self._origin.handed is not None and start_flags.path(self.rundir).exists():
            self.settings.reload()
        if self._status.advice is not None:
            _log.warning(self._status.advice)
        if on_ready is not None:
            on_ready(self.status())
        server_task = asyncio.create_task(self._watch_server())
        self._status.vital.append(server_task)
        index_task = asyncio.create_task(self.index_watch.run())
        self._status.vital.append(index_task)
        restore_task = asyncio.create_task(self._again.restore())
        repository_task = asyncio.create_task(self._again.load_repositories())
        readiness_task = asyncio.create_task(self._readiness.run())
        self._status.vital.append(readiness_task)
        autoscaler_task = asyncio.create_task(self.autoscaler.run())
        memory_task = asyncio.create_task(self.memory.run())
        lease_task = asyncio.create_task(self.leases.run())
        self._status.vital.append(lease_task)
        openai_task = asyncio.create_task(self.openai.run())
        self._status.vital.append(openai_task)
        await self.ending.asked.wait()
        self._status.phase = "stopping"
        autoscaler_task.cancel()
        memory_task.cancel()
        lease_task.cancel()
        self._notifier.stopping(self._status.for_service_manager().text)
        readiness_task.cancel()
        openai_task.cancel()
        await self.openai.stop(self.config.grace_period_s)
        if (
            socket_activation.addresses()
        ):  # connections queued in these sockets are for the next daemon
            await self._server.stop_accepting()
        server_task.cancel()
        index_task.cancel()
        restore_task.cancel()
        repository_task.cancel()
        self._server.abandon_loads()
        # Kill tritonserver if it delays the shutdown.
        kill_timer = asyncio.get_running_loop().call_later(
            self.config.grace_period_s + _LATE_ANSWERS_S, self._server.kill
        )
        unready_task = asyncio.create_task(self._server.close_gate())
        await asyncio.wait([repository_task])
        await self.repository_models.stop()
        proxy_task = asyncio.create_task(self._forget_proxies_of_ended_server())
        await self.registry.stop()
        kill_timer.cancel()
        proxy_task.cancel()
        unready_task.cancel()

    # ── what handlers use ────────────────────────────────────────────────────────────────────────

    def check_proxy(self, pid: int) -> int:
        """Check that a process is tritonserver or its child; others may not have a lane. Return the server's pid.

        Raises:
            RemoteFailure: it is neither.
        """
        return self._server.check_proxy(pid)

    async def until_vertex(self, name: str) -> None:
        """Wait until Vertex AI's frontend serves a registered model, if that is its default model."""
        await self._readiness.until_vertex(name, self.config.server_wait_timeout_s)

    def refuse_to_hold_up_a_start(self, registration: Registration) -> None:
        """Refuse a proxy that would wait for a worker before tritonserver has opened its ports.

        Raises:
            RemoteFailure: it would wait; tritonserver loads its model later.
        """
        if not self._server.ready and not registration.pool.answers:
            name = registration.spec.name
            raise RemoteFailure(ErrorKind.UNAVAILABLE, f"model {name} has no worker at the moment")

    def model_info(self, registration: Registration) -> messages.ModelInfo:
        """Return a model's description for clients."""
        return self._status.model_info(registration)

    def model_infos(self) -> list[messages.ModelInfo]:
        """Return all models in the order of registration."""
        return self._status.model_infos()

    # ── control ──────────────────────────────────────────────────────────────────────────────────

    async def _handle(
        self, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> messages.AnyMessage | None:
        return await handlers.handle(self, peer, message, payloads)

    def _hung_up(self) -> None:
        """Handle SIGHUP: a terminal was closed, or a service manager requests a reload."""
        if sys.stdin is not None and sys.stdin.isatty():
            self.ending.signalled("SIGHUP")
        else:
            self.settings.hung_up()

    # ── tritonserver ─────────────────────────────────────────────────────────────────────────────

    async def _watch_server(self) -> None:
        """Supervise tritonserver. Stop the daemon when the restart limit is reached."""
        why = await self._server_watch.run()
        self.ending.request(why, ExitCode.SERVER_FAILED)

    async def _forget_proxies_of_ended_server(self) -> None:
        """Forget the proxies if tritonserver exits during the shutdown, so that nothing waits for them."""
        end = await self._server.wait_exited()
        _log.error("tritonserver exited before its models were unloaded", how=end)
        self.registry.server_starts.forget_proxies()
