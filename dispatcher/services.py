"""The services of a daemon, created in the order of their dependencies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import structlog

from pytriton._host.client_keys import key_store
from pytriton._host.install.python_on_demand import PythonOnDemand
from pytriton._host.install.server_runtime import ServerRuntime, lay_out_backends
from pytriton._host.service_manager.systemd import Notifier
from pytriton._host.settings import advisories
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.files import shared_entries
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.control.control_socket import ControlServer, Peer
from pytriton.dispatcher.daemon_status import DaemonStatus
from pytriton.dispatcher.explanations import explanation
from pytriton.dispatcher.models.client_bound_models import ClientBoundModels
from pytriton.dispatcher.models.leases import LeaseManager
from pytriton.dispatcher.models.persistence.size_store import SizeStore
from pytriton.dispatcher.models.persistence.state_dir import Store
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.openai.supervisor import OpenAISupervisor
from pytriton.dispatcher.openai_models import api_state
from pytriton.dispatcher.readiness import ReadinessController
from pytriton.dispatcher.repository.model_control import ClientRequests, ModelControl
from pytriton.dispatcher.repository.repository_models import RepositoryModels
from pytriton.dispatcher.repository.watch import IndexWatch
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.worker_library import lay_out_library
from pytriton.dispatcher.scaling.autoscaler import Autoscaler, machine_resources, queued_at
from pytriton.dispatcher.scaling.memory_budget import MemoryBudget, accounts_of
from pytriton.dispatcher.server.frontend import (
    MODEL_CONTROL_SOCKET,
    SHM,
    Frontend,
    ServerPlace,
    new_shm_prefix,
)
from pytriton.dispatcher.server.frontends.native_frontend import NativeFrontend
from pytriton.dispatcher.server.frontends.triton_frontend import TritonFrontend
from pytriton.dispatcher.server.restart import ServerWatch
from pytriton.dispatcher.server.server_process import log_line
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.settings_reload import SettingsReloader
from pytriton.dispatcher.shutdown import DrainController, ShutdownController
from pytriton.dispatcher.startup_restore import StartupRestorer
from pytriton.dispatcher.telemetry.events.event_log import EventLog
from pytriton.dispatcher.telemetry.events.webhooks import Webhooks, read_hooks
from pytriton.dispatcher.telemetry.http.management import Management
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import MetricsCollector
from pytriton.dispatcher.telemetry.requests.collector import RequestCollector
from pytriton.dispatcher.telemetry.requests.profiler import Profiler
from pytriton.dispatcher.upgrade.coordinator import Parts, UpgradeCoordinator
from pytriton.dispatcher.upgrade.rolling_replace import RollingReplacer
from pytriton.dispatcher.upgrade.takeover import BY_ITSELF, Origin
from pytriton.dispatcher.workers.call_deadlocks import PendingCalls
from pytriton.dispatcher.workers.worker_factory import WorkerFactory

if TYPE_CHECKING:
    from pytriton.dispatcher.daemon import Daemon

_log = structlog.get_logger(__name__)

#: Number of events on the management server's page.
_SHOWN_EVENTS = 200


class Services(ABC):
    """The services that a daemon consists of; daemon.py runs them."""

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        runtime: ServerRuntime,
        store: Store,
        notifier: Notifier,
        *,
        origin: Origin = BY_ITSELF,
    ) -> None:
        self._origin = origin
        self.rundir = rundir
        self._webhooks = Webhooks(read_hooks(config.webhooks))
        self.event_log = EventLog(
            config.state_path,
            config.event_log_size,
            [self._webhooks.enqueue],
            after=0 if origin.handed is None else origin.handed.state.events,
        )
        #: Receives decisions.
        self.events = self.event_log.events
        self._notifier = notifier
        self._make_server(config, runtime)
        self._make_models(config, runtime, store)
        self._make_status(config, runtime)
        self._make_metrics(config)
        self._make_upgrade()

    def _make_server(self, config: DaemonConfig, runtime: ServerRuntime) -> None:
        handed = self._origin.handed
        self._backends = lay_out_backends(
            runtime, self.rundir.path, is_taken_over=handed is not None
        )
        if handed is None:
            self._regions = new_shm_prefix()
            self._kill_on_death = KillOnDeath(SHM / self._regions)
        else:
            self._regions = handed.state.regions
            self._kill_on_death = KillOnDeath.adopt(*handed.state.helper)
        place = ServerPlace(
            runtime,
            self.rundir.models,
            self._backends,
            self._regions,
            self._kill_on_death,
            log_line,
        )
        #: Whether our native frontend serves; otherwise NVIDIA's does.
        self.frontend_is_native = runtime.frontend is not None
        self._frontend = _frontend(config, place)
        if self.frontend_is_native:  # until tritonserver reports its own
            options = config.tritonserver_options
            logs.set_triton_log_settings(logs.TritonLogSettings.from_options(options))
        self._server = TritonServer(config, place, self._frontend)

    def _make_models(self, config: DaemonConfig, runtime: ServerRuntime, store: Store) -> None:
        self._library = lay_out_library(self.rundir)
        self._workers = WorkerFactory(config, self.rundir, self._library, self._kill_on_death)
        self._sizes = SizeStore(config.state_path)
        self.registry = Registry(
            config,
            self.rundir,
            self._server,
            self._workers.start,
            store,
            self.events,
            accounts_of(config, self._sizes),
        )
        self._server.on_retired = self.registry.server_starts.forget_retired
        restoring = self.registry.restoring
        self._frontend.set_pending_models(restoring.awaited, restoring.asked)
        restoring.gone = self._frontend.forget_pending
        #: Rolls back provisional registrations that are not confirmed.
        self.leases = LeaseManager(self.registry)
        self.waiting = PendingCalls()
        self.client_bound_models = ClientBoundModels(self.registry.end)
        self.repository_models = RepositoryModels(
            config,
            models=self.rundir.models,
            backends=self._backends,
            python=PythonOnDemand(runtime, self._backends),
            library=self._library,
            server=self._server,
            registry=self.registry,
            is_adopted=self._origin.handed is not None,
            events=self.events,
        )
        self.model_control = ModelControl(self.registry, self.repository_models)
        #: Handles clients of tritonserver that load and unload models.
        self.client_requests = ClientRequests(
            self.rundir.models.parent / MODEL_CONTROL_SOCKET,
            self._server,
            self.registry,
            self.repository_models,
        )
        self.index_watch = IndexWatch(self._server, self.registry, self.repository_models.records)
        self._again = StartupRestorer(self.registry, self.repository_models)
        self._server_watch = ServerWatch(
            self._server,
            config,
            lost=self._again.server_lost,
            preload=self.registry.server_starts.preload,
            load_again=self._again.load_again,
            undo=self.repository_models.undo_reload,
            events=self.events,
        )

    def _unkept(self) -> list[str]:
        """Return what cannot be written to the state directory, a sentence each."""
        return [text for text in (self.event_log.problem, self._sizes.problem) if text]

    def _make_status(self, config: DaemonConfig, runtime: ServerRuntime) -> None:
        self._readiness = ReadinessController(
            config,
            self._server,
            self.registry,
            self.repository_models,
            self._server_watch,
            announce=lambda: self._notifier.ready(self._status.for_service_manager().text),
        )
        #: Serves the OpenAI API once a model requests it.
        self.openai = OpenAISupervisor(
            config,
            self._library,
            self._kill_on_death,
            describe=lambda: api_state(self.config, self._frontend, self.registry),
            changes=(self.registry.changes, self._server.changes),
        )
        self._status = DaemonStatus(
            config,
            self.rundir,
            server=self._server,
            watch=self._server_watch,
            registry=self.registry,
            repository_models=self.repository_models,
            readiness=self._readiness,
            openai=self.openai,
            advice=advisories.warning(
                config, runtime.tree.version, native=runtime.frontend is not None
            ),
        )
        #: The current settings, and their reload.
        self.settings = SettingsReloader(
            config,
            self.rundir,
            self._notifier,
            self.events,
            status=self._status,
            registry=self.registry,
            repository_models=self.repository_models,
            server=self._server,
            watch=self._server_watch,
        )
        self.ending = ShutdownController(
            self._status, self.events, self.rundir, self._server, self.registry
        )
        self._workers.on_unrecoverable = self.ending.given_up
        self.draining = DrainController(
            self._status,
            self._readiness,
            self.registry,
            self.ending,
            self.events,
            self.settings.use_grace,
        )

    def _make_metrics(self, config: DaemonConfig) -> None:
        #: Enforces the memory budgets.
        self.memory = MemoryBudget(
            self.registry,
            self._sizes,
            suspend_any_idle_model=config.suspend_any_idle_model,
            shared=lambda: shared_entries.all_of(self.rundir.shared),
        )
        self._status.memory = self.memory.infos
        self._status.unkept = self._unkept
        self.autoscaler = Autoscaler(
            self.registry,
            resources=lambda: self.memory.available(machine_resources()),
            queued=lambda: queued_at(self._metrics_url),
        )
        self._control = ControlServer(
            self.rundir.control_endpoint,
            self._handle,
            group=config.control_group,
            keys=key_store(config),
        )
        #: All metrics.
        self.metrics = MetricsCollector(
            self.status,
            self._metrics_url,
            self._status.state_dir,
            self.registry,
            self._server_watch,
            self._control,
        )
        self.metrics.webhooks = self._webhooks.metrics
        self.metrics.openai = self.openai.metrics
        self.metrics.events_lost = lambda: self.event_log.lost
        self.metrics.server_pid = self._only_server
        self.metrics.shared_weights = lambda: shared_entries.size_of_all(self.rundir.shared)
        #: Single requests: access logs, slowest and failed ones.
        self.requests = RequestCollector(self.registry, self.rundir.access_log_file, logs.open_file)
        self.profiler = Profiler(self.rundir.path)
        self._management = Management(
            config,
            self.rundir,
            self.metrics,
            self.status,
            self.requests.requests,
            lambda name: explanation(cast("Daemon", self), messages.Explain(name)),
            lambda audit_only: self.event_log.recent(_SHOWN_EVENTS, audit_only=audit_only),
        )
        self._status.management_urls = self._management.urls

    def _make_upgrade(self) -> None:
        self.upgrade = UpgradeCoordinator(
            Parts(
                config=lambda: self.config,
                status=self._status,
                ending=self.ending,
                control=self._control,
                server=self._server,
                server_watch=self._server_watch,
                registry=self.registry,
                repository_models=self.repository_models,
                client_bound_models=self.client_bound_models,
                workers=self._workers,
                openai=self.openai,
                management=self._management,
                requests=self.requests,
                events=self.event_log,
                webhooks=self._webhooks,
                notifier=self._notifier,
                kill_on_death=self._kill_on_death,
                renewing=RollingReplacer(self.registry, self.settings.replace_server),
                regions=self._regions,
            )
        )

    @property
    def config(self) -> DaemonConfig:
        """The current settings."""
        return self.settings.config

    def status(self) -> messages.Status:
        """Return the daemon's status."""
        return self._status.status()

    def _metrics_url(self) -> str:
        return self._server.info().metrics_url

    def _only_server(self) -> int | None:
        """Return tritonserver's pid; None while one is starting or stopping. Thread-safe."""
        server = self._server
        return server.info().pid if server.has_single_process else None

    @abstractmethod
    async def _handle(
        self, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> messages.AnyMessage | None:
        """Return the answer to a message on the control socket."""


def _frontend(config: DaemonConfig, place: ServerPlace) -> Frontend:
    """Return the frontend that serves clients."""
    native = place.runtime.frontend
    if config.response_cache_size and native is None:
        _log.warning(
            "response cache disabled",
            reason="NVIDIA's frontend is in use; the cache needs frontend = native",
        )
    if "cache-config" in config.tritonserver_options:
        _log.warning(
            "Triton's cache can return the answer to another request",
            reason="its key lacks parameters, headers, shapes and requested outputs",
            fix="remove cache-config from tritonserver_options and set response_cache_size",
        )
    return (
        TritonFrontend(config, place) if native is None else NativeFrontend(config, place, native)
    )
