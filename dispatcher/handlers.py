"""Handlers of the messages on the control socket: each handles one message and returns the answer.

The handlers for clients come first, in groups by subject, then those for workers and proxies. `handlers_of` is the
table of all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.control.control_socket import Peer
from pytriton.dispatcher.daemon_status import DaemonStatus
from pytriton.dispatcher.explanations import Explainer
from pytriton.dispatcher.models.admission import check, check_cache, check_devices
from pytriton.dispatcher.models.client_bound_models import ClientBoundModels
from pytriton.dispatcher.models.deployer import emit_on_failure, emit_on_register_failure
from pytriton.dispatcher.models.leases import LeaseManager
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.models.served_models import describe_registrations
from pytriton.dispatcher.openai.supervisor import OpenAISupervisor
from pytriton.dispatcher.openai_models import check_aliases
from pytriton.dispatcher.readiness import ReadinessController
from pytriton.dispatcher.repository.model_control import ModelControl
from pytriton.dispatcher.repository.repository_models import RepositoryModels
from pytriton.dispatcher.repository.watch import IndexWatch
from pytriton.dispatcher.runtime.logs import tail
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.services import Services
from pytriton.dispatcher.settings_reload import SettingsReloader
from pytriton.dispatcher.shutdown import DrainController, ShutdownController
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import MetricsCollector
from pytriton.dispatcher.telemetry.requests import profiler
from pytriton.dispatcher.telemetry.requests.collector import RequestCollector
from pytriton.dispatcher.telemetry.requests.profiler import Profiler
from pytriton.dispatcher.upgrade.coordinator import UpgradeCoordinator
from pytriton.dispatcher.upgrade.snapshot import PROTOCOLS
from pytriton.dispatcher.web_routes import WebRoutes
from pytriton.dispatcher.workers.call_deadlocks import PendingCalls
from pytriton.dispatcher.workers.hosted_worker import HostedWorker, Registrant

#: Maximum number of lines in one answer; the log files have all of them.
_MAX_LOG_LINES = 100_000
#: Maximum size of the lines in one answer, since answers stay in memory until clients read them.
MAX_LOG_BYTES = 4 << 20

Payloads = Sequence[bytes]
MessageHandler = Callable[[Peer, Any, Payloads], Awaitable[Optional[messages.AnyMessage]]]


@dataclass(frozen=True)
class RegistrationHandlers:
    """Handlers of messages that register, change and remove models."""

    registry: Registry
    leases: LeaseManager
    client_bound_models: ClientBoundModels
    openai: OpenAISupervisor
    web_routes: WebRoutes
    readiness: ReadinessController
    status: DaemonStatus
    settings: SettingsReloader
    events: Events
    frontend_is_native: bool

    async def register(
        self, peer: Peer, message: messages.Register, payloads: Payloads
    ) -> messages.AnyMessage:
        """Register and serve a model, and report progress."""
        check_protocol(message.protocol, "the client")
        check(message.spec, payloads)
        if message.spec.completed_by_workers:
            text = f"model {message.spec.name}: only repository models can set completed_by_workers"
            raise RemoteFailure(ErrorKind.INVALID, text)
        hosted = message.spec.isolation == "thread"
        pid = peer.sender.pid if message.ephemeral and not hosted else None

        def served(registration: Registration) -> None:
            if pid is not None:
                self.client_bound_models.add(registration, pid)

        with emit_on_register_failure(self.events, message, self.registry.served.names):
            check_cache(
                message.spec, self.settings.config, frontend_is_native=self.frontend_is_native
            )
            check_devices(message.spec)
            check_aliases(message.spec, self.registry)
            self.web_routes.check(message.spec)
            if message.spec.openai is not None:
                self.openai.open()
            registrant = Registrant(peer, message.spec.name) if hosted else None
            try:
                registration = await self.registry.register(
                    message, payloads, peer.reply, registrant, on_served=served
                )
            except BaseException:
                if registrant is not None and self.registry.served.hosts(registrant):
                    registrant.give_up()  # too late to undo the registration, which already serves: its threads end
                elif registrant is not None:
                    await registrant.release("its registration failed")
                raise
        await self.web_routes.publish()
        await self.readiness.until_vertex(
            message.spec.name, self.settings.config.server_wait_timeout_s
        )
        return messages.Registered(self.status.model_info(registration))

    async def unregister(
        self, peer: Peer, message: messages.Unregister, payloads: Payloads
    ) -> messages.AnyMessage:
        """Stop serving a model."""
        await self.registry.unregister(message.name)
        return messages.Done()

    async def scale(
        self, peer: Peer, message: messages.Scale, payloads: Payloads
    ) -> messages.AnyMessage:
        """Change a model's number of instances, and report the progress."""
        registration = await self.registry.scale(
            message.name, message.instances, peer.reply, message.autoscale
        )
        return messages.Registered(self.status.model_info(registration))

    async def rollback(
        self, peer: Peer, message: messages.Rollback, payloads: Payloads
    ) -> messages.AnyMessage:
        """Roll a model back to the registration that it replaced, and report progress."""
        registration = await self.registry.rollback(message.name, peer.reply)
        return messages.Registered(self.status.model_info(registration))

    async def renew_lease(
        self, peer: Peer, message: messages.RenewLease, payloads: Payloads
    ) -> messages.AnyMessage:
        """Renew the lease of a provisional model."""
        self.leases.renew(message.name, message.lease, message.share)
        return messages.Done()

    async def end_lease(
        self, peer: Peer, message: messages.EndLease, payloads: Payloads
    ) -> messages.AnyMessage:
        """Make a provisional model permanent, or roll it back."""
        end = self.leases.keep if message.keep else self.leases.roll_back
        await end(message.name, message.lease)
        return messages.Done()

    async def get_registrations(
        self, peer: Peer, message: messages.GetRegistrations, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return registrations in a form from which another daemon can serve the models."""
        registrations = self.registry.served.declared(message.names)
        # In a thread, because hashing a large payload for the first time takes long.
        return await asyncio.to_thread(
            describe_registrations,
            registrations,
            with_payloads=message.payloads,
            known=message.known,
        )


@dataclass(frozen=True)
class RepositoryHandlers:
    """Handlers of messages that load and unload repository models."""

    repository_models: RepositoryModels
    registry: Registry
    index_watch: IndexWatch
    events: Events

    async def load_from_repository(
        self, peer: Peer, message: messages.LoadFromRepository, payloads: Payloads
    ) -> messages.AnyMessage:
        """Load a model from a model repository."""
        self.registry.check_open(message.name, "loaded")
        await self.registry.until_up(message.name, "loaded", peer.reply)
        with emit_on_failure(self.events, kinds.REPOSITORY_LOAD_FAILED, message.name):
            await self.repository_models.load(message.name, message.config)
        self.events.emit(kinds.LOADED, model=message.name)
        return messages.Done()

    async def unload_from_repository(
        self, peer: Peer, message: messages.UnloadFromRepository, payloads: Payloads
    ) -> messages.AnyMessage:
        """Stop serving a model from a model repository."""
        await self.repository_models.unload(message.name)
        self.events.emit(kinds.UNLOADED, model=message.name)
        return messages.Done()

    async def get_repository(
        self, peer: Peer, message: messages.GetRepository, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return the models in the model repositories."""
        await self.index_watch.poll_once()
        return messages.Repository(await self.repository_models.index())


@dataclass(frozen=True)
class StatusHandlers:
    """Handlers of queries about the daemon and its models."""

    rundir: RuntimeDir
    registry: Registry
    index_watch: IndexWatch
    status: DaemonStatus
    metrics: MetricsCollector
    requests: RequestCollector
    explainer: Explainer
    profiler: Profiler

    async def list_models(
        self, peer: Peer, message: messages.ListModels, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return the served models."""
        await self.index_watch.poll_once()
        return messages.Models(self.status.model_infos())

    async def get_status(
        self, peer: Peer, message: messages.GetStatus, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return the state of the daemon and tritonserver, and of all models if the client requests them."""
        if message.models:
            await self.index_watch.poll_once()
        return self.status.status(models=message.models)

    async def get_metrics(
        self, peer: Peer, message: messages.GetMetrics, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return all metrics."""
        return await self.metrics.snapshot()

    async def get_logs(
        self, peer: Peer, message: messages.GetLogs, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return the last log lines of a model or of the daemon."""
        if message.model is not None and not self.registry.restoring.knows(message.model):
            self.registry.served.by_name(message.model)
        count = max(0, min(message.lines, _MAX_LOG_LINES))
        return messages.LogLines(newest(tail(self.rundir.log_file(message.model), count)))

    async def explain(
        self, peer: Peer, message: messages.Explain, payloads: Payloads
    ) -> messages.AnyMessage:
        """Explain why a model is in its state."""
        await self.index_watch.poll_once()
        return await self.explainer.explain(message)

    async def get_events(
        self, peer: Peer, message: messages.GetEvents, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return the requested events."""
        return await self.explainer.events(message)

    async def log_requests(
        self, peer: Peer, message: messages.LogRequests, payloads: Payloads
    ) -> messages.AnyMessage:
        """Enable or disable a model's access log."""
        await self.registry.restoring.restore_and_wait(message.name)
        registration = await self.registry.amend(message.name, access_log=message.on)
        registration.events.emit(kinds.ACCESS_LOG, numbers={"on": int(message.on)})
        self.requests.poll()
        self.registry.changes.notify()  # the collector may be waiting for up to 30 s
        return messages.Done()

    async def get_requests(
        self, peer: Peer, message: messages.GetRequests, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return a model's slowest requests, and its most recent failed ones."""
        return self.requests.requests(message.model)

    async def profile_worker(
        self, peer: Peer, message: messages.ProfileWorker, payloads: Payloads
    ) -> messages.AnyMessage:
        """Profile a worker by sampling its stacks for the requested time."""
        await self.registry.restoring.restore_and_wait(message.model)
        registration = self.registry.served.by_name(message.model)
        if registration.registrant is not None:
            text = f"model {message.model} runs in threads of process {registration.registrant.pid}"
            raise RemoteFailure(
                ErrorKind.INVALID, f"{text}. Use: py-spy record --pid {registration.registrant.pid}"
            )
        counters = self.registry.served.counter_registry.of(message.model)
        workers = [one for of in counters.instances.values() for one in of.workers]
        worker = profiler.choose_worker(
            message, workers, suspended=registration.pool.suspension.suspended
        )
        return await self.profiler.profile(worker, message)


@dataclass(frozen=True)
class DaemonHandlers:
    """Handlers of messages that stop, drain, upgrade or reload the daemon, or replace tritonserver."""

    shutdown_controller: ShutdownController
    drain_controller: DrainController
    upgrade_coordinator: UpgradeCoordinator
    settings: SettingsReloader
    status: DaemonStatus

    async def shutdown(
        self, peer: Peer, message: messages.Shutdown, payloads: Payloads
    ) -> messages.AnyMessage:
        """Stop the daemon as SIGTERM does."""
        self.shutdown_controller.request("requested by a client")
        return messages.Done()

    async def drain(
        self, peer: Peer, message: messages.Drain, payloads: Payloads
    ) -> messages.AnyMessage:
        """Drain the daemon: report "not ready" to load balancers first, and stop later, so that no request is lost."""
        await self.drain_controller.begin(message)
        return messages.Done()

    async def upgrade(self, peer: Peer, message: messages.Upgrade, payloads: Payloads) -> None:
        """Check that an upgrade is possible, answer the client, then upgrade to another version of the daemon."""
        await self.upgrade_coordinator.prepare(message)
        await peer.reply(messages.Done())
        self.upgrade_coordinator.begin(message)

    async def reload(
        self, peer: Peer, message: messages.Reload, payloads: Payloads
    ) -> messages.AnyMessage:
        """Reload the settings, as SIGHUP does."""
        return self.settings.reload()

    async def replace_server(
        self, peer: Peer, message: messages.ReplaceServer, payloads: Payloads
    ) -> messages.AnyMessage:
        """Replace the running tritonserver with a new one."""
        former = self.status.status(models=False).server.pid or 0
        pid = await self.settings.replace_server("requested by a client", force=message.force)
        return messages.ServerReplaced(pid, former)


@dataclass(frozen=True)
class WorkerHandlers:
    """Handlers of messages from workers."""

    registry: Registry
    model_control: ModelControl
    pending_calls: PendingCalls
    shutdown: ShutdownController

    async def worker_hello(
        self, peer: Peer, message: messages.WorkerHello, payloads: Payloads
    ) -> None:
        """Send a new worker its model."""
        check_protocol(message.protocol, f"worker {message.worker}")
        registration, worker = self.registry.served.worker(message.worker)
        worker.protocol = message.protocol
        await worker.hello(peer, registration.payloads)

    async def worker_ready(
        self, peer: Peer, message: messages.WorkerReady, payloads: Payloads
    ) -> None:
        """Record that a worker is ready."""
        registration, worker = self.registry.served.worker(message.worker)
        why = registration.complete_config(message.completion)
        if why is None:
            worker.loaded()
        else:
            worker.failed(messages.WorkerFailed(worker.name, why, ""))

    async def worker_failed(
        self, peer: Peer, message: messages.WorkerFailed, payloads: Payloads
    ) -> None:
        """Record that a worker could not load its callable."""
        self.registry.served.worker(message.worker)[1].failed(message)

    async def worker_recycle_due(
        self, peer: Peer, message: messages.WorkerRecycleDue, payloads: Payloads
    ) -> None:
        """Record that a worker is due for recycling."""
        self.registry.served.worker(message.worker)[1].request_recycle(message)

    async def worker_unrecoverable(
        self, peer: Peer, message: messages.WorkerUnrecoverable, payloads: Payloads
    ) -> None:
        """Stop the daemon because a callable raised PyTritonUnrecoverableError. The daemon's service manager restarts
        it.
        """
        registration, _ = self.registry.served.worker(message.worker)
        self.shutdown.unrecoverable(registration.spec.name, message.text)

    async def worker_readiness(
        self, peer: Peer, message: messages.WorkerReadiness, payloads: Payloads
    ) -> None:
        """Record that a model's `is_ready` returned a different result than before."""
        registration, worker = self.registry.served.worker(message.worker)
        if worker.not_ready_reason != (
            None if message.ready else message.why
        ):  # otherwise it is a repetition
            await registration.pool.record_readiness(worker, ready=message.ready, why=message.why)

    async def worker_ended(
        self, peer: Peer, message: messages.WorkerEnded, payloads: Payloads
    ) -> None:
        """Record that a hosted worker has exited."""
        worker = self.registry.served.worker(message.worker)[1]
        if isinstance(worker, HostedWorker):  # the kernel reports the exit of a process
            worker.mark_ended(message.how)

    async def load_other(
        self, peer: Peer, message: messages.LoadOther, payloads: Payloads
    ) -> messages.AnyMessage:
        """Load a model because another model requested it."""
        await self.registry.restoring.restore_and_wait(message.name)
        await self.model_control.load(message, payloads)
        return messages.Done()

    async def unload_other(
        self, peer: Peer, message: messages.UnloadOther, payloads: Payloads
    ) -> messages.AnyMessage:
        """Unload a model because another model requested it."""
        await self.registry.restoring.restore_and_wait(message.name)
        await self.model_control.unload(message)
        return messages.Done()

    async def ask_readiness(
        self, peer: Peer, message: messages.AskReadiness, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return whether a model is ready. Load it first if it is lazy."""
        await self.registry.restoring.restore_and_wait(message.name)
        return messages.Readiness(self.model_control.is_ready(message.name, message.version))

    async def may_call(
        self, peer: Peer, message: messages.MayCall, payloads: Payloads
    ) -> messages.AnyMessage:
        """Decide whether a call that leads back to a model may be retried, or must fail because it would deadlock."""
        pool = self.registry.served.by_name(message.model).pool
        return pool.proxies.judge_call(message.chain, message.workers)

    async def calls_wait(
        self, peer: Peer, message: messages.CallsWait, payloads: Payloads
    ) -> messages.AnyMessage:
        """Return the models whose responses a worker is waiting for in vain, because the calls are deadlocked."""
        self.pending_calls.record(message.worker, message.pid, message.models, message.proxy)
        stuck = self.pending_calls.stuck(message.worker, self.registry.served.workers_of)
        text = ""
        if stuck:
            own = self.registry.served.worker(message.worker)[0].spec.name
            text = (
                f"the calls wait for each other in a cycle and are deadlocked: a worker of {own} waits for "
                f"{' and '.join(stuck)}, whose workers all wait for {own}, directly or through other models. Break the cycle, "
                "or register more instances"
            )
        return messages.StuckCalls(stuck, text)


@dataclass(frozen=True)
class ProxyHandlers:
    """Handlers of messages from proxies."""

    registry: Registry
    server: TritonServer
    settings: SettingsReloader

    async def attach(
        self, peer: Peer, message: messages.Attach, payloads: Payloads
    ) -> messages.AnyMessage:
        """Assign a worker to a proxy, and return the worker."""
        check_protocol(message.protocol, "the proxy")
        registration = self.registry.served.by_key(message.registration)
        server = self.server.check_proxy(message.pid)
        stub = None if server == message.pid else message.pid
        registration.proxies.watch(message.instance, stub, server)
        self._check_start_not_delayed(registration)
        attached = await registration.pool.proxies.route(
            message.instance, message.lost, message.avoid, message.version, batch=message.batch
        )
        return msgspec.structs.replace(attached, tracing=self.settings.tracing)

    async def lane_lost(
        self, peer: Peer, message: messages.LaneLost, payloads: Payloads
    ) -> messages.AnyMessage:
        """Decide whether to retry or fail a batch whose worker was lost."""
        pool = self.registry.served.by_key(message.registration).pool
        return await pool.batch_retry.on_loss(message)

    async def batch_overdue(
        self, peer: Peer, message: messages.BatchOverdue, payloads: Payloads
    ) -> messages.AnyMessage:
        """Decide whether a proxy should wait longer for an overdue batch, retry it or fail it."""
        pool = self.registry.served.by_key(message.registration).pool
        return pool.batch_retry.on_overdue(message)

    async def detach(self, peer: Peer, message: messages.Detach, payloads: Payloads) -> None:
        """Record that a proxy has detached."""
        self.registry.served.by_key(message.registration).detach(message.instance)

    def _check_start_not_delayed(self, registration: Registration) -> None:
        """Refuse a proxy that would delay tritonserver's start by waiting for a worker.

        Raises:
            RemoteFailure: the proxy would wait. Its model is loaded later.
        """
        if not self.server.ready and not registration.pool.answers:
            name = registration.spec.name
            raise RemoteFailure(ErrorKind.UNAVAILABLE, f"model {name} has no worker at the moment")


def handlers_of(services: Services, upgrade: UpgradeCoordinator) -> dict[type, MessageHandler]:
    """Return the handler for each type of message. Each group of handlers gets only the services that it uses."""
    registrations = RegistrationHandlers(
        services.registry,
        services.leases,
        services.client_bound_models,
        services.openai,
        services.web_routes,
        services.readiness,
        services.status,
        services.settings,
        services.events,
        services.frontend_is_native,
    )
    repositories = RepositoryHandlers(
        services.repository_models,
        services.registry,
        services.index_watch,
        services.events,
    )
    status = StatusHandlers(
        services.rundir,
        services.registry,
        services.index_watch,
        services.status,
        services.metrics,
        services.requests,
        services.explainer,
        services.profiler,
    )
    daemon = DaemonHandlers(
        services.shutdown,
        services.drain,
        upgrade,
        services.settings,
        services.status,
    )
    workers = WorkerHandlers(
        services.registry,
        services.model_control,
        services.pending_calls,
        services.shutdown,
    )
    proxies = ProxyHandlers(
        services.registry,
        services.server,
        services.settings,
    )
    return {
        messages.Register: registrations.register,
        messages.Unregister: registrations.unregister,
        messages.Scale: registrations.scale,
        messages.Rollback: registrations.rollback,
        messages.RenewLease: registrations.renew_lease,
        messages.EndLease: registrations.end_lease,
        messages.LoadFromRepository: repositories.load_from_repository,
        messages.UnloadFromRepository: repositories.unload_from_repository,
        messages.GetRepository: repositories.get_repository,
        messages.ListModels: status.list_models,
        messages.GetStatus: status.get_status,
        messages.GetMetrics: status.get_metrics,
        messages.GetLogs: status.get_logs,
        messages.GetRegistrations: registrations.get_registrations,
        messages.Explain: status.explain,
        messages.GetEvents: status.get_events,
        messages.LogRequests: status.log_requests,
        messages.GetRequests: status.get_requests,
        messages.ProfileWorker: status.profile_worker,
        messages.Shutdown: daemon.shutdown,
        messages.Drain: daemon.drain,
        messages.Upgrade: daemon.upgrade,
        messages.Reload: daemon.reload,
        messages.ReplaceServer: daemon.replace_server,
        messages.WorkerHello: workers.worker_hello,
        messages.WorkerReady: workers.worker_ready,
        messages.WorkerFailed: workers.worker_failed,
        messages.WorkerRecycleDue: workers.worker_recycle_due,
        messages.WorkerUnrecoverable: workers.worker_unrecoverable,
        messages.WorkerEnded: workers.worker_ended,
        messages.WorkerReadiness: workers.worker_readiness,
        messages.LoadOther: workers.load_other,
        messages.UnloadOther: workers.unload_other,
        messages.AskReadiness: workers.ask_readiness,
        messages.Attach: proxies.attach,
        messages.MayCall: workers.may_call,
        messages.CallsWait: workers.calls_wait,
        messages.LaneLost: proxies.lane_lost,
        messages.BatchOverdue: proxies.batch_overdue,
        messages.Detach: proxies.detach,
    }


def newest(lines: Sequence[str], most_bytes: int = MAX_LOG_BYTES) -> list[str]:
    """Return as many of the last lines as fit into `most_bytes`, in order."""
    fitting: list[str] = []
    for line in reversed(lines):
        most_bytes -= len(line.encode("utf-8", "replace"))
        if most_bytes < 0:
            break
        fitting.append(line)
    return fitting[::-1]


def check_protocol(protocol: int, who: str) -> None:
    """Check that the daemon supports the protocol version of a process.

    Raises:
        RemoteFailure: it does not.
    """
    if protocol not in PROTOCOLS:
        raise RemoteFailure(
            ErrorKind.INVALID,
            f"{who} speaks protocol {protocol}, but this daemon speaks {messages.PROTOCOL}: install the same version of "
            "pytriton-daemon on both sides and restart the daemon",
        )
