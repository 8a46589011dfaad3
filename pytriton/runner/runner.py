"""`Runner`: the models of a repository, served by a private or a running daemon."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Union

from pytriton._protocol.closeable import Closeable
from pytriton.daemon import DaemonClient, connect
from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.runner.calls import AsyncCalls, SyncCalls
from pytriton.runner.daemon_connection import DaemonConnection
from pytriton.runner.errors import RunnerArgumentError
from pytriton.runner.model import RunnerModel
from pytriton.runner.options import daemon_settings
from pytriton.runner.private import PrivateDaemon

__all__ = ["Runner"]

StrPath = Union[str, "os.PathLike[str]"]
_PROTOCOLS = ("grpc", "http")
_READY_POLL_INTERVAL_S = 0.1


class Runner(AsyncCalls, Closeable):
    """The models of a model repository, accessed as `runner.NAME` or `runner["NAME"]`.

    The constructor starts nothing. A private daemon starts with the first call, in `init_local()` or on entering a
    `with` block, and stops with the runner. With `daemon=`, the runner uses a running daemon and its repositories instead.
    tritonclient's calls are available as coroutines of the runner, and as blocking methods of `runner.sync`.

    Args:
        name: name of the runner, for messages
        model_repository: folder in Triton's layout, or s3://, gs:// or as://; or a list of these
        tritonserver_type: protocol, "grpc" or "http"
        cli_args: options of tritonserver for the private daemon, each in the form "--name=value"
        daemon: a running daemon, instead of a repository: its client or its runtime directory
        timeout_s: timeout of a call, in seconds
        start_timeout_s: maximum wait until the private daemon has started and loaded the models, in seconds
        settings: other settings of the private daemon, see docs/reference/configuration.md

    Raises:
        RunnerArgumentError: an argument is invalid.

    Example:
        >>> runner = Runner("vision", model_repository="models")             # doctest: +SKIP
        >>> runner.onnx_mnist.run(images).as_numpy("OUTPUT__0")              # doctest: +SKIP
        >>> await runner.get_model_repository_index()                        # doctest: +SKIP
        >>> runner.sync.load_model("onnx_mnist")                             # doctest: +SKIP
    """

    def __init__(
        self,
        name: str,
        model_repository: StrPath | Sequence[StrPath] | None = None,
        tritonserver_type: str = "grpc",
        cli_args: Sequence[str] | None = None,
        *,
        daemon: DaemonClient | StrPath | None = None,
        timeout_s: float = 300.0,
        start_timeout_s: float = 600.0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(self)
        if tritonserver_type not in _PROTOCOLS:
            raise RunnerArgumentError(
                f"tritonserver_type must be 'grpc' or 'http', got {tritonserver_type!r}"
            )
        options = daemon_settings(cli_args)
        places = _repository_paths(model_repository) + options.pop("model_repository", [])
        if (daemon is None) == (not places):
            raise RunnerArgumentError(
                "A runner requires either model_repository=, to start a private daemon, or daemon=, to use a "
                "running one"
            )
        if daemon is not None and (cli_args or settings):
            raise RunnerArgumentError(
                "cli_args and settings apply only to a private daemon, but daemon= selects one that is already "
                "running"
            )
        self.name = name
        self.sync = SyncCalls(self)
        self._protocol = tritonserver_type
        self._settings = {"model_repository": places, **options, **(settings or {})}
        self._daemon = daemon
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._link: DaemonConnection | None = None
        self._private: PrivateDaemon | None = None
        self._closed = False
        self._lock = threading.RLock()

    # ── models ───────────────────────────────────────────────────────────────────────────────────

    def __getattr__(self, name: str) -> RunnerModel:
        """Return the model of a given name, unless the runner has an attribute of that name."""
        if name.startswith("_"):
            raise AttributeError(name)
        return RunnerModel(self, name)

    def __getitem__(self, name: str) -> RunnerModel:
        """Return the model of a given name."""
        return RunnerModel(self, name)

    def models(self) -> list[str]:
        """The names of the served models, both registered ones and those from repositories."""
        client = self.link().client
        served = [one.name for one in client.repository() if one.served_by]
        return sorted({*served, *(one.name for one in client.models())})

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    def init_local(self, quiet: bool = False) -> None:
        """Connect to the daemon, starting a private one if necessary. Return when the models are loaded.

        `quiet` is accepted for compatibility with BentoML and has no effect: nothing is printed.

        Raises:
            PyTritonDaemonError: the daemon did not start or is not running.
        """
        self.link()

    def runner_handle_is_ready(self, timeout: float = 30.0) -> bool:
        """Return whether the server is live and ready within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            if self.sync.is_server_live() and self.sync.is_server_ready():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_READY_POLL_INTERVAL_S)  # tritonserver has to be polled

    def destroy(self) -> None:
        """Close the runner. The next call starts or connects it again."""
        with self._lock:
            self.close()
            self._closed = False

    def close(self) -> None:
        """Close the connections and stop the private daemon, after its current batches have been answered."""
        with self._lock:
            self._closed = True
            link, self._link = self._link, None
            private, self._private = self._private, None
            atexit.unregister(self.close)
            if link is not None:
                link.close()
            if private is not None:
                private.close()

    def __enter__(self) -> Runner:
        self.init_local()
        return self

    def link(self) -> DaemonConnection:
        """Return the connection to the daemon, creating it if necessary. For internal use."""
        link = self._link
        if link is not None:
            return link
        with self._lock:
            if self._closed:
                raise PyTritonInvalidOperationError(f"The runner {self.name!r} has been closed")
            made = self._link or DaemonConnection(self._client(), self._protocol, self._timeout_s)
            self._link = made
            return made

    async def async_link(self) -> DaemonConnection:
        """Return the connection to the daemon, without blocking the event loop while a daemon starts.

        For internal use.
        """
        link = self._link
        return await asyncio.to_thread(self.link) if link is None else link

    def _client(self) -> DaemonClient:
        if isinstance(self._daemon, DaemonClient):
            return self._daemon
        if self._daemon is not None:
            return connect(self._daemon)
        if self._private is None:
            self._private = PrivateDaemon(self._settings, self._start_timeout_s)
            atexit.register(self.close)
        return self._private.client

    # ── streams ──────────────────────────────────────────────────────────────────────────────────

    async def stream_infer(
        self,
        inputs_iterator: AsyncIterator[dict[str, Any]],
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Call tritonclient's `stream_infer`.

        The iterator contains arguments of `infer`. Yield pairs of a result and an error.

        Raises:
            RunnerArgumentError: the protocol is HTTP, which has no streams.
        """
        link = await self.async_link()
        if not link.url.is_grpc:
            raise RunnerArgumentError(
                "stream_infer requires gRPC: Runner(..., tritonserver_type='grpc')"
            )
        # A gRPC connection, whose client is used directly.
        connection: Any = await link.asynchronous()
        responses = connection.client().stream_infer(
            inputs_iterator, headers={**link.headers, **(headers or {})}, **options
        )
        async for response in responses:
            yield response

    def __repr__(self) -> str:
        return f"Runner({self.name!r})"


def _repository_paths(given: StrPath | Sequence[StrPath] | None) -> list[str]:
    if given is None:
        return []
    several = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    places = []
    for one in several:
        text = os.fspath(one)
        if "://" in text:
            places.append(text)
            continue
        folder = Path(text).expanduser().absolute()
        if not folder.is_dir():
            raise RunnerArgumentError(
                f"model_repository {text!r}: the folder {folder} does not exist. It must contain a folder for "
                f"each model, e.g. "
                "onnx_mnist/1/model.onnx"
            )
        places.append(str(folder))
    return places
