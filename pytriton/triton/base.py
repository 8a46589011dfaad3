"""Base class of `Triton` and `RemoteTriton`: binds models and serves until a signal."""

from __future__ import annotations

import logging
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from pytriton.exceptions import DaemonNotRunningError, ModelNotFoundError, PyTritonDaemonError
from pytriton.triton.models import BoundModel, refuse_twin

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
    """SIGTERM raised like SIGINT: it interrupts whatever the main thread waits for."""


class TritonBase(ABC):
    """The bound models and the daemon that serves them.

    Thread-safe. `bind` and `connect` exclude each other; `stop` interrupts both instead of waiting.
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
        """Serve a callable as a model: at once when connected, else as soon as the server runs.

        Args:
            model_name: letters, digits, dots, underscores, dashes
            infer_func: a callable that takes a list of requests and returns a list of dicts (or is decorated, see
                pytriton.decorators), or a sequence of callables: one instance of the model each
            inputs: the model's input tensors, without the batch axis; unnamed ones become INPUT_1, INPUT_2, ...
            outputs: the model's output tensors
            model_version: the version number in the model's URLs
            config: batching, queueing and more (``ModelConfig()``)
            strict: outputs must have exactly the declared dtype and shape
            trace_config: tracing settings of this model; default: those of TritonConfig
            replace: replace a model already bound with that name. The old one serves until the new one is ready, and
                keeps serving if that fails. This lets you rerun a notebook cell
            progress: as for `DaemonClient.register`
            options: any further argument of `DaemonClient.register` but `ephemeral`, such as `instances`, `devices`,
                `factory`, `limits`, `python`; see `pytriton.run_options`. `isolation="process"` (default) copies the
                callable (cloudpickle) into a worker process; with "thread" it runs here, for callables that cannot be
                pickled or share live objects with this script

        Raises:
            PyTritonValidationError, PyTritonBadParameterError: an argument is invalid
            PyTritonInvalidOperationError: a model of that name is already bound, and `replace` was not set
            PicklingError: the callable cannot be sent to another process; names the cause and possible solutions
            RegistrationError: loading failed in the worker or in tritonserver; carries the remote traceback

        Example:
            >>> triton.bind("linear", infer_fn, [Tensor(...)], [Tensor(...)])  # doctest: +SKIP
        """
        said: dict[str, Any] = {**options}
        trace_config = trace_config if trace_config is not None else _list(self._trace_config)
        if trace_config:
            said["trace_config"] = trace_config
        model = BoundModel(
            model_name, infer_func, inputs, outputs, model_version, config, strict, said, progress
        )
        model.check()
        with self._loading:
            others = [other for other in self._models if not (replace and other.name == model.name)]
            refuse_twin(model, others)
            client = self._client
            if client is not None:
                self._load(client, model, replace=replace)
            self._models = [*others, model]

    def unbind(self, model_name: str) -> None:
        """Stop serving a model: in-flight requests are answered. Its name can be bound again.

        Raises:
            ModelNotFoundError: no model of that name is bound
            PyTritonDaemonError: it could not be removed from the server and remains bound
        """
        with self._loading:
            found = [model for model in self._models if model.name == model_name]
            if not found:
                bound = ", ".join(model.name for model in self._models) or "none"
                raise ModelNotFoundError(f"No model {model_name!r} is bound here. Bound: {bound}.")
            client = self._client
            if client is not None and found[0].served is not None:
                found[0].unload(client)
            self._models = [model for model in self._models if model is not found[0]]

    def _load(self, client: DaemonClient, model: BoundModel, *, replace: bool = False) -> None:
        model.load(client, replace=replace or self._replaces)
        _announce(model, client.status().server)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    def connect(self) -> None:
        """Wait for the server and load the bound models; does nothing when already connected.

        Raises:
            TimeoutError: the server is missing or does not become ready
            RegistrationError: a model cannot be served
        """
        with self._loading:
            if self._client is not None:
                return
            client = self._reach()
            for model in self._models:
                self._load(client, model)
            with self._lock:
                if self._ended.is_set():
                    raise DaemonNotRunningError("The server was stopped while models were loaded.")
                self._client = client

    def is_connected(self) -> bool:
        """Return whether models are being served and newly bound ones will be loaded at once."""
        return self._client is not None

    def is_alive(self) -> bool:
        """Return whether the server runs and every bound model has a worker, or will have one again."""
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
        """The HTTP URL, e.g. `http://127.0.0.1:8000`; empty when HTTP is off or not connected."""
        client = self._client
        return client.status().server.http_url if client is not None else ""

    @property
    def grpc_url(self) -> str:
        """The gRPC URL, e.g. `grpc://127.0.0.1:8001`; empty when gRPC is off or not connected."""
        client = self._client
        return client.status().server.grpc_url if client is not None else ""

    def serve(self, monitoring_period_s: float = MONITORING_PERIOD_S) -> None:
        """Serve until SIGINT or SIGTERM, until `stop`, or until the server or a model has stopped permanently.

        In-flight requests are answered, then everything stops and this returns. Signals are handled in the main
        thread; your own handlers for them are kept.

        Args:
            monitoring_period_s: interval between checks of the models, in seconds; the server's exit is noticed at
            once
        """
        try:
            with _sigterm_interrupts():
                try:
                    self._before_serving()
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def stop(self) -> bool:
        """Stop serving. Return whether anything was running."""

    @abstractmethod
    def _before_serving(self) -> None:
        """Start the server if this object has one."""

    @abstractmethod
    def _reach(self) -> DaemonClient:
        """Return a client of the daemon once it is ready.

        Raises:
            TimeoutError: the daemon did not become ready in time
        """

    @abstractmethod
    def get_access_token(self) -> str | None:
        """Return the access token in force, None if there is none."""

    def _forget_served(self) -> None:
        self._client = None
        for model in self._models:
            model.served = None


def _may_serve(info: messages.ModelInfo) -> bool:
    states = [instance.state for instance in info.instances]
    if info.state in ("suspended", "resuming"):  # a request resumes it
        return True
    return info.state != "failed" and any(state not in _FAILED for state in states)


def _list(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else list(values)


def _announce(model: BoundModel, server: messages.ServerInfo) -> None:
    path = f"/v2/models/{model.name}"
    logger.info("Infer function available as model: `%s`", path)
    logger.info("  Status:         `GET  %s%s/ready/`", server.http_url, path)
    logger.info("  Model config:   `GET  %s%s/config/`", server.http_url, path)
    logger.info("  Inference:      `POST %s%s/infer/`", server.http_url, path)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Make SIGTERM interrupt the main thread as SIGINT does, unless this process handles it already."""
    usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if threading.current_thread() is not threading.main_thread() or not usual:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
