"""`Triton`: a server of one's own, for as long as the script wants it, at most as long as the script lives."""

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
from pytriton.triton.server import ServerProcess, new_runtime_dir
from pytriton.triton.settings import command_line, daemon_settings, secured
from pytriton.utils.workspace import Workspace, new_path, remove

if TYPE_CHECKING:
    from pytriton.daemon import DaemonClient

#: Seconds within which the daemon tells how it is.
_PATIENCE_S = 60.0
WorkspacePath = Union[Workspace, str, "os.PathLike[str]", None]


class Triton(TritonBase):
    """Triton Inference Server for the callables of this script.

    It starts a private daemon: tritonserver, and a worker process for each instance of a model. All of it ends with
    `stop`, with the `with` block, with the script, and with whatever kills the script.

    Args:
        config: settings of the server; they win over PYTRITON_TRITON_CONFIG_* in the environment
        workspace: a folder to make, which must not exist, or a `Workspace`; None: a new one
        triton_lifecycle_policy: when the server starts
        security_config: which endpoints ask for the access token

    Raises:
        FileExistsError: the workspace exists
        PyTritonValidationError: a setting is wrong

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
        self._security = secured(self._config, security_config)
        self._workspace_wanted = workspace
        if isinstance(workspace, (str, os.PathLike)):
            _refuse_existing(Path(workspace).expanduser())
        self._server: ServerProcess | None = None
        self._closing = (
            threading.RLock()
        )  #: held while the server stops: the next one starts afterwards
        if triton_lifecycle_policy is None:
            vertex = self._config.allow_vertex_ai
            triton_lifecycle_policy = (
                VertextAILifecyclePolicy if vertex else DefaultTritonLifecyclePolicy
            )
        self._policy = triton_lifecycle_policy
        self._triton_server_config = ServerConfig(self._config)
        daemon_settings(self._config, self._security, Path())  # what is wrong is told now

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
        """Start the server, serve the models that are bound, and return: serving goes on in the background.

        After `stop` it can be called again.

        Raises:
            DaemonStartError: the server did not start, for one because a port is in use; says by whom
            RegistrationError: a model cannot be served; nothing is left running
        """
        started = self._start()
        try:
            self.connect()
        except BaseException:
            if started:
                self.stop()
            raise

    def stop(self) -> bool:
        """Answer the requests under way, then end the server and all workers, and remove the workspace.

        Returns:
            False when there was nothing to stop.
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
                self._tidy_up(server)
        return True

    def get_access_token(self) -> str | None:
        """Return the token that restricted endpoints ask for; None when nothing is restricted and none was given."""
        return self._security.access_token

    def _start(self) -> bool:
        """Start the daemon and return when it is ready; False when it has been started already."""
        from pytriton._clash import clashing_distribution

        clash = clashing_distribution()
        if clash is not None:
            raise PyTritonDaemonError(clash)
        with self._closing, self._lock:
            if self._server is not None and os.getpid() == self._pid:
                return False
            self._forget_served()  # of the parent, if this is a forked child
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

    def _new_server(self, workspace: Path) -> ServerProcess:
        runtime_dir = new_runtime_dir()
        names = [model.name for model in self._models]
        settings = daemon_settings(self._config, self._security, runtime_dir, names)
        return ServerProcess(settings, self._server_ended, workspace=workspace)

    def _load(self, client: DaemonClient, model: BoundModel, *, replace: bool = False) -> None:
        super()._load(client, model, replace=replace)
        # At exit the server is stopped first, while the threads that serve models here still do.
        atexit.unregister(self.stop)
        atexit.register(self.stop)

    def _reach(self) -> DaemonClient:
        from pytriton.daemon import connect

        server = self._server
        if server is None:
            raise TimeoutError(
                "Triton Inference Server is not ready after timeout. It was not started: call "
                "run() or serve(), or use `with Triton() as triton:`."
            )
        server.wait_ready()
        # A machine that is overloaded for a while is no reason to take the server for dead.
        return connect(server.runtime_dir, timeout_s=_PATIENCE_S)

    def _before_serving(self) -> None:
        self.run()
        logger.info(
            "(Press CTRL+C or use the command `kill -SIGINT %d` to send a SIGINT signal and quit)",
            os.getpid(),
        )

    def _server_ended(self, server: ServerProcess, reason: str) -> None:
        """The daemon has ended by itself; this is its follower's thread."""
        with self._closing:
            with self._lock:
                if self._server is not server:
                    return
                self._server = None
                self._forget_served()
            logger.error("Triton Inference Server exited with failure. Please wait. (%s)", reason)
            self._tidy_up(server)

    def _tidy_up(self, server: ServerProcess) -> None:
        if not self._ended.is_set():
            self._warn_of_verbose_log()
        atexit.unregister(self.stop)
        # Unless it was ready, it may have found a folder of somebody else there.
        if server.was_ready and server.workspace is not None:
            remove(server.workspace)  # nothing is there, unless the daemon was killed
        if isinstance(self._workspace_wanted, Workspace):
            self._workspace_wanted.clean()
        self._ended.set()

    def _workspace_path(self) -> Path:
        """Return the folder that the daemon is to make; a `Workspace` has been made already."""
        wanted = self._workspace_wanted
        if wanted is None:
            return new_path()
        if isinstance(wanted, Workspace):
            return wanted.path
        path = Path(wanted).expanduser().absolute()
        _refuse_existing(path)
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
    """The settings that the server was started with, for people to look at."""

    def __init__(self, config: TritonConfig) -> None:
        self._config = config

    def to_cli_string(self) -> str:
        """Return it as options of tritonserver, such as `--http-port=9000`."""
        return command_line(self._config)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise FileExistsError(
            f"The workspace {path} exists already. Name a folder that does not: it is made at the "
            "start and removed with all that is in it at the stop."
        )
