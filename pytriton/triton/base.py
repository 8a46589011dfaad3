"""Base class of `Triton` and `RemoteTriton`: binds models and serves them until a signal arrives."""

from __future__ import annotations

import logging
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pytriton._host.interrupt import raise_from_handler
from pytriton.exceptions import DaemonNotRunningError, ModelNotFoundError, PyTritonDaemonError
from pytriton.triton.models import BoundModel, reject_duplicate_name

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pytriton._control.connection import Report
    from pytriton._protocol import messages
    from pytriton.daemon import DaemonClient
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.run_options import CallableOptions

logger = logging.getLogger("pytriton.triton")

#: The monitoring period of `serve`, in seconds.
MONITORING_PERIOD_S = 10.0
_FAILED = ("failed", "stopping", "stopped")
_LOST = "A model has no worker left, or the server has exited."


class _Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, like KeyboardInterrupt on SIGINT, to interrupt the main thread's wait."""


class TritonBase(ABC):
    """Bound models, and the connection to the daemon that serves them.

    Thread-safe. Only one thread at a time runs `bind` or `connect`; `stop` interrupts them instead of waiting.
    """

    #: Whether a model replaces one of the same name registered by another process.
    _replaces = False

    def __init__(self, trace_config: Sequence[str] | None = None) -> None:
        self._models: list[BoundModel] = []
        self._client: DaemonClient | None = None
        self._trace_config = trace_config
        self._lock = threading.RLock()  #: held only briefly
        self._loading = threading.RLock()  #: held while models are loading
        self._ended = threading.Event()  #: set while there is no server
        self._ended.set()
        self._pid = os.getpid()

    # ── models ───────────────────────────────────────────────────────────────────────────────────

    def bind(
        self,
        model_name: str,
        infer_func: Any,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
        model_version: int = 1,
        config: ModelConfig | None = None,
        strict: bool = False,
        trace_config: list[str] | None = None,
        *,
        replace: bool = False,
        progress: bool | Report | None = False,
        **options: Unpack[CallableOptions],
    ) -> None:
        """Serve a callable as a model: immediately if connected, otherwise once the server is running.

        Args:
            model_name: name of the model: letters, digits, dots, underscores, dashes
            infer_func: a callable that takes a list of requests and returns a list of dicts, or a callable decorated
                as described in pytriton.decorators; or a sequence of callables, one for each instance of the model
            inputs: the model's input tensors, without the batch axis. Unnamed tensors are named INPUT_1, INPUT_2, ...
            outputs: the model's output tensors. Unnamed tensors are named OUTPUT_1, OUTPUT_2, ...
            model_version: the version number in the model's URLs
            config: batching, queueing and more; default: ``ModelConfig()``
            strict: require outputs to have exactly the declared dtype and shape
            trace_config: tracing settings of this model; default: those of TritonConfig
            replace: replace the bound model of the same name. The old one serves until the new one is ready, and
                keeps serving if the new one fails to load. This lets you rerun a notebook cell.
            progress: as in `DaemonClient.register`
            options: any other argument of `DaemonClient.register` except `ephemeral`, such as `instances`, `devices`,
                `factory`, `limits` or `python`; see `pytriton.run_options`. `isolation="process"` (default) copies the
                callable (with cloudpickle) into a worker process. With "thread" the callable runs in this process:
                for callables that cannot be pickled, or that share live objects with this script.

        Raises:
            PyTritonValidationError, PyTritonBadParameterError: an argument is invalid
            PyTritonInvalidOperationError: a model of that name is already bound, and `replace` is not set
            PicklingError: the callable cannot be sent to another process; the message names the cause and remedies
            RegistrationError: loading failed in the worker or in tritonserver; contains the remote traceback

        Example:
            >>> triton.bind("linear", infer_fn, [Tensor(...)], [Tensor(...)])  # doctest: +SKIP
        """
        all_options: dict[str, Any] = {**options}
        traced = self._trace_config if trace_config is None else trace_config
        if traced:
            all_options["trace_config"] = list(traced)
        model = BoundModel(
            model_name,
            infer_func,
            inputs,
            outputs,
            model_version,
            config,
            strict,
            all_options,
            progress,
        )
        model.check()
        with self._loading:
            others = [other for other in self._models if not (replace and other.name == model.name)]
            reject_duplicate_name(model, others)
            client = self._client
            if client is not None:
                self._load(client, model, replace=replace)
            self._models = [*others, model]

    def unbind(self, model_name: str) -> None:
        """Stop serving a model once its in-flight requests have been answered. Its name can then be bound again.

        Raises:
            ModelNotFoundError: no model of that name is bound
            PyTritonDaemonError: the model could not be removed from the server and remains bound
        """
        with self._loading:
            found = [model for model in self._models if model.name == model_name]
            if not found:
                bound = ", ".join(model.name for model in self._models) or "none"
                raise ModelNotFoundError(
                    f"No model {model_name!r} is bound to this server. Bound models: {bound}."
                )
            client = self._client
            if client is not None and found[0].served is not None:
                found[0].unload(client)
            self._models = [model for model in self._models if model is not found[0]]

    def _load(self, client: DaemonClient, model: BoundModel, *, replace: bool = False) -> None:
        model.load(client, replace=replace or self._replaces)
        _announce(model, client.status().server)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    def connect(self) -> None:
        """Wait for the server and load the bound models. Do nothing if already connected.

        Raises:
            TimeoutError: the server is not running or does not become ready
            RegistrationError: a model cannot be served
            DaemonNotRunningError: the server was stopped while models were loading
        """
        with self._loading:
            if self._client is not None:
                return
            client = self._wait_for_daemon()
            for model in self._models:
                self._load(client, model)
            with self._lock:
                if self._ended.is_set():
                    raise DaemonNotRunningError("The server was stopped while models were loading.")
                self._client = client

    def is_connected(self) -> bool:
        """Return whether this object is connected to the server. If it is, `bind` loads models immediately."""
        return self._client is not None

    def is_alive(self) -> bool:
        """Return whether the server runs and every bound model has a worker, is starting one, or is suspended."""
        client = self._client
        if client is None or self._ended.is_set():
            return False
        try:
            served = {info.name: info for info in client.status().models}
        except (DaemonNotRunningError, PyTritonDaemonError):
            return False
        bound = [served.get(model.name) for model in self._models if model.served is not None]
        return all(info is not None and _may_serve(info) for info in bound)

    @property
    def http_url(self) -> str:
        """The HTTP URL, e.g. `http://127.0.0.1:8000`; empty if HTTP is disabled or this object is not connected."""
        client = self._client
        return client.status().server.http_url if client is not None else ""

    @property
    def grpc_url(self) -> str:
        """The gRPC URL, e.g. `grpc://127.0.0.1:8001`; empty if gRPC is disabled or this object is not connected."""
        client = self._client
        return client.status().server.grpc_url if client is not None else ""

    def serve(self, monitoring_period_s: float = MONITORING_PERIOD_S) -> None:
        """Serve until SIGINT, SIGTERM or `stop`, or until the server or a model has failed permanently.

        Then answer the in-flight requests, stop everything and return. Signals are handled only in the main thread,
        and SIGTERM only if your program has no handler for it.

        Args:
            monitoring_period_s: interval between checks of the models, in seconds. An exit of the server is noticed
                immediately.
        """
        try:
            with _sigterm_interrupts():
                try:
                    self._prepare_to_serve()
                    while not self._ended.wait(monitoring_period_s):
                        if not self.is_alive():
                            if self._client is not None:  # otherwise another thread is stopping it
                                logger.error(_LOST)
                            break
                except KeyboardInterrupt as signalled:
                    name = "SIGTERM" if isinstance(signalled, _Terminated) else "SIGINT"
                    logger.info("%s received, exiting.", name)
                self.stop()
        except _Terminated:
            logger.warning("SIGTERM received again: stopped without waiting for requests.")

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def stop(self) -> bool:
        """Stop serving. Return whether there was anything to stop."""

    @abstractmethod
    def _prepare_to_serve(self) -> None:
        """Start the server, if it belongs to this object, and connect to it."""

    @abstractmethod
    def _wait_for_daemon(self) -> DaemonClient:
        """Return a client of the daemon once it is ready.

        Raises:
            TimeoutError: the daemon did not become ready in time
        """

    @abstractmethod
    def get_access_token(self) -> str | None:
        """Return the access token that restricted endpoints require; None if there is none."""

    def _forget_served(self) -> None:
        self._client = None
        for model in self._models:
            model.served = None


def _may_serve(info: messages.ModelInfo) -> bool:
    states = [instance.state for instance in info.instances]
    if info.state in ("suspended", "resuming"):  # a request resumes it
        return True
    return info.state != "failed" and any(state not in _FAILED for state in states)


def _announce(model: BoundModel, server: messages.ServerInfo) -> None:
    path = f"/v2/models/{model.name}"
    logger.info("Infer function available as model: `%s`", path)
    logger.info("  Status:         `GET  %s%s/ready/`", server.http_url, path)
    logger.info("  Model config:   `GET  %s%s/config/`", server.http_url, path)
    logger.info("  Inference:      `POST %s%s/infer/`", server.http_url, path)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt the main thread like SIGINT, unless the process has its own handler for it."""
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if threading.current_thread() is not threading.main_thread() or not is_default:
        yield
        return

    signal.signal(signal.SIGTERM, partial(raise_from_handler, _Terminated))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
