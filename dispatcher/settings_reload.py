"""The settings of a running daemon: read anew, and taken over by the daemon itself or by another tritonserver."""

from __future__ import annotations

import msgspec
import structlog

from pytriton._host.install.cache import NO_ROOM, explain_os_error
from pytriton._host.service_manager.systemd import Notifier
from pytriton._host.settings import trace_settings
from pytriton._host.settings.declarations import ConfigError, DaemonConfig
from pytriton._host.settings.reload import for_another_server, reread
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
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.telemetry.events.reloads import tell_reload

_log = structlog.get_logger(__name__)


class SettingsReloader:
    """Has the settings that hold now, and tells the daemon's parts when they change.

    Args:
        config: as the daemon was started
        rundir: knows the flags that it was started with
        notifier: tells the service manager of a reload
        events: takes what is decided
        status: knows whether the daemon is ready
        registry: gives the models that are registered from now on what has changed
        repository_models: those that tritonserver serves itself
        server: gets other settings when another one takes its place
        watch: replaces it

    Attributes:
        config: the settings as they are now.
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
        self.tracing = trace_settings.uses_opentelemetry(config)
        self._rundir = rundir
        self._notifier = notifier
        self._events = events
        self._status = status
        self._registry = registry
        self._repository_models = repository_models
        self._server = server
        self._watch = watch

    def reload(self) -> messages.Reloaded:
        """Read the settings anew and take over what can change while the daemon runs."""
        if self._status.phase != "ready":
            return messages.Reloaded(
                [], [], f"the daemon is {self._status.phase}; try again when ready"
            )
        self._notifier.reloading()
        config, answer = reread(self.config, self._rundir)
        tell_reload(self._events, answer)  # first: the new level may hide it
        logs.set_level(config.log_level)
        self._use(config)
        self._notifier.ready(self._status.for_service_manager().text)
        return answer

    def use_grace(self, grace_s: float) -> None:
        """Have a stop give requests under way so long."""
        self._use(msgspec.structs.replace(self.config, grace_period_s=grace_s))

    def hung_up(self) -> None:
        """SIGHUP of a service manager: reload, if the daemon is ready."""
        if self._status.phase == "ready":
            self.reload()
        else:
            _log.warning("not reloaded: the daemon is not ready", state=self._status.phase)

    async def replace_server(self, why: str, *, force: bool = False) -> int:
        """Have another tritonserver take the place of the one that runs, without a request lost; return its pid.

        It has the settings that are read anew, as far as they are tritonserver's. `force`: also while sequences are in
        progress.

        Raises:
            RemoteFailure: that cannot be; the one that runs serves on.
        """
        try:
            config = for_another_server(self.config, self._rundir)
            self._server.use(config)
            pid = await self._watch.replace(why, force=force)
        except ConfigError as error:
            raise RemoteFailure(ErrorKind.INVALID, f"tritonserver serves on: {error}") from error
        except BaseException as error:
            self._server.use(self.config)
            if not isinstance(error, (ServerStartError, OSError)):
                raise
            why = str(error)
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                folder = f"--runtime-dir or {ENV_RUNTIME_DIR}"
                why = explain_os_error(error, self._rundir.path, folder)
            text = f"tritonserver serves on: another one did not start: {why}"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text) from error
        self._use(config)
        self.tracing = trace_settings.uses_opentelemetry(config)
        return pid

    def _use(self, config: DaemonConfig) -> None:
        self.config = config
        self._registry.use(config)
        self._repository_models.use(config)
