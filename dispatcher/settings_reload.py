"""Reloads the settings of a running daemon, and applies them to its services or to a new tritonserver."""

from __future__ import annotations

import msgspec
import structlog

from pytriton._host.install.cache import NO_ROOM, explain_os_error
from pytriton._host.service_manager.systemd import Notifier
from pytriton._host.settings.declarations import ConfigError, DaemonConfig
from pytriton._host.settings.opentelemetry import uses_opentelemetry
from pytriton._host.settings.reload import reload_settings, settings_for_replacement
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.files.rundir import ENV_RUNTIME_DIR, RuntimeDir
from pytriton.dispatcher.daemon_status import DaemonStatus
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.repository.repository_models import RepositoryModels
from pytriton.dispatcher.runtime import logs
from pytriton.dispatcher.server.restart import ServerWatch
from pytriton.dispatcher.server.server_process import ServerStartError
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.telemetry.events.events import Events, emit_reload

_log = structlog.get_logger(__name__)


class SettingsReloader:
    """Holds the current settings, and applies changed settings to the daemon's services.

    Args:
        config: the settings with which the daemon was started
        rundir: contains the flags with which it was started
        notifier: reports a reload to the service manager
        events: receives an event about each reload
        status: knows whether the daemon is ready
        registry: applies changes to models that are registered from now on
        repository_models: the models of repositories
        server: gets changed settings when it is replaced
        watch: replaces tritonserver

    Attributes:
        config: the current settings.
        tracing: whether tritonserver traces requests with OpenTelemetry.
    """

    def __init__(
        self,
        config: DaemonConfig,
        rundir: RuntimeDir,
        notifier: Notifier,
        events: Events,
        *,
        status: DaemonStatus,
        registry: Registry,
        repository_models: RepositoryModels,
        server: TritonServer,
        watch: ServerWatch,
    ) -> None:
        self.config = config
        self.tracing = uses_opentelemetry(config)
        self._rundir = rundir
        self._notifier = notifier
        self._events = events
        self._status = status
        self._registry = registry
        self._repository_models = repository_models
        self._server = server
        self._watch = watch

    def reload(self) -> messages.Reloaded:
        """Read the settings again, and apply those that may change while the daemon is running."""
        if self._status.phase != "ready":
            return messages.Reloaded(
                [], [], f"the daemon is {self._status.phase}; try again when ready"
            )
        self._notifier.reloading()
        config, answer = reload_settings(self.config, self._rundir)
        emit_reload(self._events, answer)  # before the log level changes, which might hide it
        logs.set_level(config.log_level)
        self._apply(config)
        self._notifier.ready(self._status.for_service_manager().text)
        return answer

    def set_grace_period(self, grace_s: float) -> None:
        """Set the grace period for requests in flight, in seconds."""
        self._apply(msgspec.structs.replace(self.config, grace_period_s=grace_s))

    def on_sighup(self) -> None:
        """Handle SIGHUP from a service manager: reload the settings if the daemon is ready."""
        if self._status.phase == "ready":
            self.reload()
        else:
            _log.warning(
                "settings were not reloaded: the daemon is not ready", state=self._status.phase
            )

    async def replace_server(self, why: str, *, force: bool = False) -> int:
        """Replace the running tritonserver without losing a request. Return the pid of the new tritonserver.

        The new one gets the reloaded settings. With `force`, replace it even while sequences are in progress.

        Raises:
            RemoteFailure: the replacement failed. The running tritonserver keeps serving.
        """
        try:
            config = settings_for_replacement(self.config, self._rundir)
            self._server.use(config)
            pid = await self._watch.replace(why, force=force)
        except ConfigError as error:
            raise RemoteFailure(
                ErrorKind.INVALID, f"tritonserver was not replaced: {error}"
            ) from error
        except BaseException as error:
            self._server.use(self.config)
            if not isinstance(error, (ServerStartError, OSError)):
                raise
            why = str(error)
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                folder = f"--runtime-dir or {ENV_RUNTIME_DIR}"
                why = explain_os_error(error, self._rundir.path, folder)
            text = f"tritonserver was not replaced: the new one did not start: {why}"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text) from error
        self._apply(config)
        self.tracing = uses_opentelemetry(config)
        return pid

    def _apply(self, config: DaemonConfig) -> None:
        self.config = config
        self._registry.use(config)
        self._repository_models.use(config)
