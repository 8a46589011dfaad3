"""The daemon's lifecycle, from top to bottom::

    run.run          lock the runtime directory, find tritonserver, open the state directory
    Daemon.main      control socket ▶ tritonserver ▶ ready ▶ (serve until a shutdown is requested)
    _stop_serving    refuse registrations ▶ unload all models (in-flight batches are answered, up to the grace period)
    _shut_down       stop tritonserver ▶ end the workers ▶ close the control socket

The first SIGTERM or SIGINT starts a graceful shutdown. The second one exits at once, as does SIGINT during a shutdown.
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
from pytriton._host.install.server_runtime import ServerRuntime
from pytriton._host.ports import PortError
from pytriton._host.service_manager import socket_activation
from pytriton._host.service_manager.systemd import Notifier
from pytriton._host.settings import start_flags
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher import handlers
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.control.peers import user_name
from pytriton.dispatcher.daemon_status import own_version
from pytriton.dispatcher.models.persistence.state_dir import Store
from pytriton.dispatcher.server import cloud_frontends
from pytriton.dispatcher.server.restart import start_server
from pytriton.dispatcher.server.server_process import ServerStartError
from pytriton.dispatcher.services import build_services
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.upgrade.coordinator import UpgradeCoordinator
from pytriton.dispatcher.upgrade.takeover import BY_ITSELF, SIGNALS, Origin

_log = structlog.get_logger(__name__)

OnReady = Callable[[messages.Status], None]
#: Extra time for batches that are answered at the very end of the grace period.
_LATE_ANSWERS_S = 1.0


class Daemon:
    """One daemon in one runtime directory, from start to shutdown.

    Args:
        config: its settings
        rundir: its runtime directory
        runtime: the installation of tritonserver
        store: its state directory
        notifier: the service manager
        lock: descriptor of the runtime directory's lock
        is_private: whether it belongs to a script
        origin: why it starts, and the state that it takes over
    """

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        runtime: ServerRuntime,
        store: Store,
        notifier: Notifier,
        *,
        lock: int = -1,
        is_private: bool = False,
        origin: Origin = BY_ITSELF,
    ) -> None:
        self.services = build_services(
            config, rundir, runtime, store, notifier, origin, self.handle
        )
        upgrade = UpgradeCoordinator(self.services, locks=(lock, store.lock), is_private=is_private)
        self._upgrade = upgrade
        self._handlers = handlers.handlers_of(self.services, upgrade)

    async def handle(
        self, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> messages.AnyMessage | None:
        """Handle a message on the control socket. Return the answer, or None if there is none.

        Raises:
            RemoteFailure: the failure to send to the client.
        """
        handler = self._handlers.get(type(message))
        if handler is None:
            text = f"{type(message).__name__} is not a message for the dispatcher"
            raise RemoteFailure(ErrorKind.INVALID, text)
        return await handler(peer, message, payloads)

    async def main(self, on_ready: OnReady | None) -> int:
        """Run the daemon until it has stopped. Return its exit code."""
        services = self.services
        refused = self._listen()
        if refused is not None:
            await services.control.close()
            return refused
        await services.client_requests.start()
        tasks, status = services.tasks, services.status
        tasks.start("control socket", services.control.serve(), vital=True)
        tasks.start("service manager", services.notifier.keep(status.for_service_manager))
        tasks.start("loop lag", services.metrics.lag.run())
        tasks.start("request collector", services.requests.run())
        try:
            await self._start_or_take_over_server()
        except (ServerStartError, PortError) as error:
            in_use = isinstance(error, PortError)
            code = ExitCode.PORT_IN_USE if in_use else ExitCode.SERVER_FAILED
            services.shutdown.server_failed(str(error), code)
            await services.registry.stop()
        else:
            self._begin_serving(on_ready)
            await services.shutdown.requested.wait()
            await self._stop_serving()
        await self._shut_down()
        return services.shutdown.code

    # ── start ────────────────────────────────────────────────────────────────────────────────────

    def _listen(self) -> ExitCode | None:
        """Install signal handlers, and listen on the daemon's own sockets. Return an exit code on failure."""
        services = self.services
        takeover = services.origin.takeover
        if takeover is None:
            who, why = f"user {user_name(os.getuid())}", services.origin.because
            services.events.emit(kinds.STARTED, who=who, reason=why, numbers={"pid": os.getpid()})
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(
                number, services.shutdown.signalled, signal.Signals(number).name
            )
        adopted = () if takeover is None else (takeover.state.management, takeover.state.beginnings)
        refused = self._listen_tcp() or services.management.open(*adopted)
        if refused is not None:
            return refused
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        # Signals that arrived during an upgrade have been blocked until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        services.control.bind(None if takeover is None else takeover.state.control)
        return None

    def _listen_tcp(self) -> ExitCode | None:
        """Listen for clients with a key, if configured. Return an exit code on failure."""
        services = self.services
        address = services.config.control_tcp
        if address is None:
            return None
        takeover = services.origin.takeover
        if takeover is not None and takeover.state.control_tcp:  # keep the previous version's port
            address = takeover.state.control_tcp[len("tcp://") :]
        try:
            services.status.control_tcp = services.control.listen_tcp(address)
        except (KeyStoreError, zmq.ZMQError) as error:
            if takeover is not None:  # keep serving without it
                services.status.report_tcp_lost(address, str(error))
                return None
            _log.error("cannot listen", control_tcp=address, reason=str(error))
            in_use = getattr(error, "errno", None) == errno.EADDRINUSE
            return ExitCode.PORT_IN_USE if in_use else ExitCode.USAGE
        return None

    def _hung_up(self) -> None:
        """Handle SIGHUP: a service manager requests a reload, or a terminal was closed."""
        if sys.stdin is not None and sys.stdin.isatty():
            self.services.shutdown.signalled("SIGHUP")
        else:
            self.services.settings.on_sighup()

    async def _start_or_take_over_server(self) -> None:
        """Start tritonserver with the models that it can load while starting, or adopt its state after an upgrade.

        Raises:
            ServerStartError, PortError: tritonserver did not start.
        """
        services = self.services
        starts = services.registry.server_starts
        takeover = services.origin.takeover
        if takeover is not None:
            self._upgrade.adopt(takeover)
            lazy = frozenset(takeover.state.lazy)
            starts.load_lazily(lambda spec: spec.name in lazy)
            return
        starts.deploy_suspended_models(self._may_load_lazily)
        await services.web_routes.publish()  # tritonserver gets the routes when it starts
        loaded = await start_server(services.server, services.config, starts.preload_at_first_start)
        await starts.record_preloaded(loaded)
        services.server_watch.emit_started()

    def _may_load_lazily(self, spec: messages.ModelSpec) -> bool:
        """Return whether a model can be loaded on demand. Only clients of tritonserver's frontend may use such a model.

        False if there is a model repository: its ensembles and backends may call any model.
        """
        config = self.services.config
        awaits = self.services.frontend.queues_requests and self.services.server.proxy_is_native
        vertex = cloud_frontends.vertex_model(config.tritonserver_options)
        return awaits and not config.model_repository and spec.name != vertex

    def _begin_serving(self, on_ready: OnReady | None) -> None:
        """Report that clients can register models, and start the daemon's background tasks."""
        services, status = self.services, self.services.status
        status.phase = "draining" if services.registry.refusal else "ready"
        own_version()  # cache it now: another version may be installed later
        if services.origin.takeover is not None and start_flags.path(services.rundir).exists():
            services.settings.reload()
        if status.advice is not None:
            _log.warning(status.advice)
        if on_ready is not None:
            on_ready(status.status())
        tasks = services.tasks
        tasks.start("server watch", services.server_watch.run(), vital=True)
        tasks.start("index watch", services.index_watch.run(), vital=True)
        tasks.start("restore", services.restorer.restore())
        tasks.start("repositories", services.restorer.load_repositories())
        tasks.start("readiness", services.readiness.run(), vital=True)
        tasks.start("autoscaler", services.autoscaler.run())
        tasks.start("memory", services.memory.run())
        tasks.start("leases", services.leases.run(), vital=True)
        tasks.start("openai", services.openai.run(), vital=True)
        tasks.start("web routes", services.web_routes.run(), vital=True)

    # ── shutdown ─────────────────────────────────────────────────────────────────────────────────

    async def _stop_serving(self) -> None:
        """Answer the requests in flight, and unload all models."""
        services, tasks = self.services, self.services.tasks
        grace_s = services.config.grace_period_s
        services.status.phase = "stopping"
        services.notifier.stopping(services.status.for_service_manager().text)

        # Stop the daemon's own changes to models.
        tasks.cancel("autoscaler", "memory", "leases", "readiness")

        # Finish the requests of the OpenAI API while its models still serve.
        tasks.cancel("openai", "web routes")
        await services.openai.stop(grace_s)

        # Leave the connections queued in a service manager's sockets to the next daemon.
        if socket_activation.addresses():
            await services.server.stop_accepting()

        # Stop loading models and restarting tritonserver.
        tasks.cancel("server watch", "index watch", "restore", "repositories")
        services.server.abandon_loads()

        # From now on, tritonserver may take the grace period.
        kill_timer = asyncio.get_running_loop().call_later(
            grace_s + _LATE_ANSWERS_S, services.server.kill
        )

        # Make load balancers send their requests elsewhere.
        tasks.start("report not ready", services.server.close_gate())

        # Unload the models of repositories.
        await tasks.wait("repositories")
        await services.repository_models.stop()

        # Unload the registered models; their in-flight batches are answered.
        tasks.start("lost proxies", self._forget_proxies_of_exited_server())
        await services.registry.stop()
        kill_timer.cancel()
        tasks.cancel("lost proxies", "report not ready")

    async def _forget_proxies_of_exited_server(self) -> None:
        """Forget the proxies if tritonserver exits during the shutdown. Otherwise the shutdown would wait for them."""
        end = await self.services.server.wait_exited()
        _log.error("tritonserver exited before its models were unloaded", how=end)
        self.services.registry.server_starts.forget_proxies()

    async def _shut_down(self) -> None:
        """Stop all processes, close all sockets, and record the exit."""
        services, tasks = self.services, self.services.tasks

        # Stop tritonserver, and everything that starts workers.
        await services.client_requests.close()
        await services.server.stop()
        await services.workers.forks.hold()

        # Answer no more clients.
        tasks.cancel("control socket")
        await services.control.close()

        # Stop reporting.
        tasks.cancel_all()
        services.requests.close()
        await services.management.close()

        # Release what outlives a process that is killed, such as shared memory.
        services.kill_on_death.close()
        services.memory.close()

        # Record the reason and the exit code.
        services.shutdown.write_record()
        services.event_log.close()
        services.webhooks.close()
