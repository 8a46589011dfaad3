"""`Triton`: a private server that runs until it is stopped or this script exits."""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Union

from pytriton.exceptions import PyTritonDaemonError
from pytriton.triton.base import TritonBase, logger
from pytriton.triton.config import TritonConfig
from pytriton.triton.models import BoundModel
from pytriton.triton.policy import (
    DefaultTritonLifecyclePolicy,
    TritonLifecyclePolicy,
    VertextAILifecyclePolicy,
)
from pytriton.triton.security import TritonSecurityConfig
from pytriton.triton.server import DaemonProcess, new_runtime_dir
from pytriton.triton.settings import command_line, daemon_settings, effective_security
from pytriton.utils.workspace import Workspace, new_path, remove

if TYPE_CHECKING:
    from pytriton.daemon import DaemonClient

#: Timeout of requests to the daemon. It is long so that a daemon on an overloaded machine does not count as dead.
_REQUEST_TIMEOUT_S = 60.0
WorkspacePath = Union[Workspace, str, "os.PathLike[str]", None]


class Triton(TritonBase):
    """Triton Inference Server for the callables of this script.

    Starts a private daemon, which runs tritonserver and one worker process for each instance of a model. They all
    exit at `stop`, at the end of the `with` block, or when the script exits for any reason.

    Args:
        config: settings of the server. They override PYTRITON_TRITON_CONFIG_* in the environment.
        workspace: path of a folder that does not exist yet, or a `Workspace`; None: a new folder
        triton_lifecycle_policy: when the server starts
        security_config: which endpoints require the access token

    Raises:
        FileExistsError: the workspace already exists
        PyTritonValidationError: a setting is invalid

    Example:
        >>> with Triton() as triton:                                    # doctest: +SKIP
        ...     triton.bind("linear", infer_fn, [Tensor(...)], [Tensor(...)])
        ...     triton.serve()
    """

    def __init__(
        self,
        *,
        config: TritonConfig | None = None,
        workspace: WorkspacePath = None,
        triton_lifecycle_policy: TritonLifecyclePolicy | None = None,
        security_config: TritonSecurityConfig | None = None,
    ) -> None:
        self._config = (config or TritonConfig()).over(TritonConfig.from_env())
        super().__init__(self._config.trace_config)
        self._security = effective_security(self._config, security_config)
        self._workspace_wanted = workspace
        if isinstance(workspace, (str, os.PathLike)):
            _reject_existing(Path(workspace).expanduser())
        self._server: DaemonProcess | None = None
        #: Held while a server stops, so that the next one starts afterwards.
        self._closing = threading.RLock()
        if triton_lifecycle_policy is None:
            vertex = self._config.allow_vertex_ai
            triton_lifecycle_policy = (
                VertextAILifecyclePolicy if vertex else DefaultTritonLifecyclePolicy
            )
        self._policy = triton_lifecycle_policy
        self._triton_server_config = ServerConfig(self._config)
        daemon_settings(self._config, self._security, Path())  # raises now if a setting is invalid

    def __enter__(self) -> Triton:
        """Start the server, unless the policy says to wait for `run` or `serve`."""
        if self._policy.launch_triton_on_startup:
            try:
                self.run()
            except BaseException:
                self.stop()
                raise
        return self

    def run(self) -> None:
        """Start the server, load the bound models, and return. Serving continues in the background.

        `run` can be called again after `stop`.

        Raises:
            DaemonStartError: the server did not start. If a port is in use, the message names the process using it.
            RegistrationError: a model cannot be served. If this call started the server, the server was stopped.
        """
        started = self._start()
        try:
            self.connect()
        except BaseException:
            if started:
                self.stop()
            raise

    def stop(self) -> bool:
        """Answer the in-flight requests, then stop the server and all workers, and remove the workspace.

        Returns:
            False if no server was running.
        """
        with self._closing:
            with self._lock:
                server, self._server = self._server, None
                if server is None or os.getpid() != self._pid:  # a forked child does not own it
                    return False
                client = self._client
                self._forget_served()
            try:
                if client is not None:
                    client.expect_end()
                server.stop()
            finally:
                self._clean_up(server)
        return True

    def get_access_token(self) -> str | None:
        """Return the access token; None if no endpoint is restricted and no token was given."""
        return self._security.access_token

    def _start(self) -> bool:
        """Start the daemon and wait until it is ready. Return False if it was already started."""
        from pytriton._clash import clashing_distribution

        clash = clashing_distribution()
        if clash is not None:
            raise PyTritonDaemonError(clash)
        with self._closing, self._lock:
            if self._server is not None and os.getpid() == self._pid:
                return False
            self._forget_served()  # a forked child has inherited its parent's registrations
            self._pid = os.getpid()
            try:
                server = self._server = self._new_server(self._workspace_path())
                atexit.register(self.stop)
                self._ended.clear()
            except BaseException:
                self._server = None
                self._ended.set()
                raise
        try:
            server.start()
            server.wait_ready()
        except BaseException:
            self.stop()
            raise
        self._warn_of_verbose_log()
        return True

    def _new_server(self, workspace: Path) -> DaemonProcess:
        runtime_dir = new_runtime_dir()
        names = [model.name for model in self._models]
        settings = daemon_settings(self._config, self._security, runtime_dir, names)
        return DaemonProcess(settings, self._server_ended, workspace=workspace)

    def _load(self, client: DaemonClient, model: BoundModel, *, replace: bool = False) -> None:
        super()._load(client, model, replace=replace)
        # Handlers run in reverse order: stop the server before the threads that serve models in this process.
        atexit.unregister(self.stop)
        atexit.register(self.stop)

    def _wait_for_daemon(self) -> DaemonClient:
        from pytriton.daemon import connect

        server = self._server
        if server is None:
            raise TimeoutError(
                "Triton Inference Server is not ready after timeout. It was not started: call "
                "run() or serve(), or use `with Triton() as triton:`."
            )
        server.wait_ready()
        return connect(server.runtime_dir, timeout_s=_REQUEST_TIMEOUT_S)

    def _prepare_to_serve(self) -> None:
        self.run()
        logger.info(
            "(Press CTRL+C or use the command `kill -SIGINT %d` to send a SIGINT signal and quit)",
            os.getpid(),
        )

    def _server_ended(self, server: DaemonProcess, reason: str) -> None:
        """Clean up after a daemon that exited unexpectedly. Called in the `DaemonProcess` thread."""
        with self._closing:
            with self._lock:
                if self._server is not server:
                    return
                self._server = None
                self._forget_served()
            logger.error("Triton Inference Server exited with failure. Please wait. (%s)", reason)
            self._clean_up(server)

    def _clean_up(self, server: DaemonProcess) -> None:
        if not self._ended.is_set():
            self._warn_of_verbose_log()
        atexit.unregister(self.stop)
        # A daemon that never became ready may have failed because the folder belongs to another process.
        if server.was_ready and server.workspace is not None:
            remove(server.workspace)  # still exists only if the daemon was killed
        if isinstance(self._workspace_wanted, Workspace):
            self._workspace_wanted.clean()
        self._ended.set()

    def _workspace_path(self) -> Path:
        """Return the path of the workspace. The daemon creates the folder, unless a `Workspace` has created it."""
        wanted = self._workspace_wanted
        if wanted is None:
            return new_path()
        if isinstance(wanted, Workspace):
            return wanted.path
        path = Path(wanted).expanduser().absolute()
        _reject_existing(path)
        return path

    def _warn_of_verbose_log(self) -> None:
        level = self._config.log_verbose or 0
        if level > 0:
            logger.warning(
                "Triton Inference Server is running with enabled verbose logs (log_verbose_level=%d). "
                "It may affect inference performance.",
                level,
            )


class ServerConfig:
    """The settings that the server was started with, for display."""

    def __init__(self, config: TritonConfig) -> None:
        self._config = config

    def to_cli_string(self) -> str:
        """Return the settings as options of tritonserver, such as `--http-port=9000`."""
        return command_line(self._config)


def _reject_existing(path: Path) -> None:
    if path.exists():
        raise FileExistsError(
            f"The workspace {path} already exists. Pass a path that does not exist: the folder is created at "
            "startup and removed with all its contents when the server stops."
        )
