"""`FuturesModelClient`: send many requests in parallel from one thread."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401, gevent's threads import it, perhaps when that is too late
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pytriton._protocol.closeable import Closeable
from pytriton.client._inference.daemon_threads import DaemonThreads
from pytriton.client._inference.request import InferCall, InferMethods
from pytriton.client._inference.tensor_conversion import Outputs
from pytriton.client._transport.url import Urls
from pytriton.client.exceptions import PyTritonClientClosedError, PyTritonClientQueueFullError
from pytriton.client.model_client import ModelClient
from pytriton.client.tls import TlsOptions
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = ["FuturesModelClient"]

T = TypeVar("T")
Self = TypeVar("Self", bound="FuturesModelClient")

#: Threads are created on demand. This number means no limit.
_UNLIMITED_WORKERS = 100_000


class FuturesModelClient(InferMethods[Future[Outputs]], Closeable):
    """A client whose methods return futures immediately. Threads of the client wait for the responses.

    Args:
        url: see `ModelClient`
        model_name: name of the model
        model_version: version of the model; None: the latest
        max_workers: maximum number of requests in flight; None: no limit
        max_queue_size: maximum number of additional requests in the queue; None: no limit
        non_blocking: if the queue is full, raise `PyTritonClientQueueFullError` instead of waiting
        init_timeout_s: see `ModelClient`; time spent in the queue does not count towards the timeouts
        inference_timeout_s: see `ModelClient`
        ensure_model_is_ready: see `ModelClient`
        access_token: see `ModelClient`
        tls: see `ModelClient`
        model_config: see `ModelClient`

    Raises:
        ValueError: `max_workers` or `max_queue_size` is below 1
        PyTritonClientValueError: another argument is invalid

    Example:
        >>> with FuturesModelClient("localhost", "linear") as client:            # doctest: +SKIP
        ...     futures = [client.infer_sample(x) for x in samples]
        ...     results = [future.result() for future in futures]
    """

    def __init__(
        self,
        url: Urls,
        model_name: str,
        model_version: str | int | None = None,
        *,
        max_workers: int | None = 128,
        max_queue_size: int | None = 128,
        non_blocking: bool = False,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        model_config: TritonModelConfig | None = None,
        ensure_model_is_ready: bool = True,
        access_token: str | None = None,
        tls: TlsOptions | None = None,
    ) -> None:
        _require_size("max_workers", max_workers)
        _require_size("max_queue_size", max_queue_size)
        self._client = ModelClient(
            url,
            model_name,
            model_version,
            init_timeout_s=init_timeout_s,
            inference_timeout_s=inference_timeout_s,
            model_config=model_config,
            ensure_model_is_ready=ensure_model_is_ready,
            access_token=access_token,
            tls=tls,
        )
        workers = _UNLIMITED_WORKERS if max_workers is None else max_workers
        self._threads = DaemonThreads(workers, f"pytriton-{model_name}")
        self._limit = None if max_queue_size is None else workers + max_queue_size
        self._non_blocking = non_blocking
        self._changed = threading.Condition()
        self._count = 0  #: requests queued or in flight
        self._closed = False
        self._abandoned = False  #: set when queued requests must no longer start
        _awaited.add(self)

    def model_config(self) -> Future[TritonModelConfig]:
        """Return a future of the model's configuration."""
        return self._submit(lambda: self._client.model_config)

    def wait_for_model(self, timeout_s: float) -> Future[None]:
        """Wait up to `timeout_s` seconds until the model is ready; see `ModelClient.wait_for_model`."""
        return self._submit(lambda: self._client.wait_for_model(timeout_s))

    def close(self, wait: bool = True) -> None:
        """Stop accepting requests. Does nothing if already closed.

        Args:
            wait: wait until all requests are answered. Otherwise queued requests fail with
                `PyTritonClientClosedError`, and requests in flight finish in the background
        """
        with self._changed:
            self._closed = True
            self._abandoned = self._abandoned or not wait
            self._changed.notify_all()
            idle = self._count == 0
        if idle:
            self._client.close()
        if self._abandoned:
            self._threads.run_queued()  # they fail immediately, even if all threads are busy
        self._threads.end(wait=wait)

    def __enter__(self: Self) -> Self:
        self._require_open()
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        if kind is not None:  # after an exception, such as Ctrl-C, results are no longer collected
            _awaited.discard(self)
        try:
            self.close(wait=kind is None)
        except BaseException:  # Ctrl-C during the wait
            _awaited.discard(self)
            raise

    def _infer(self, request: InferCall) -> Future[Outputs]:
        return self._submit(lambda: self._client._infer(request))

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        with self._changed:
            self._require_open()
            while self._limit is not None and self._count >= self._limit:
                if self._non_blocking:
                    raise PyTritonClientQueueFullError(
                        f"The queue of {self._client!r} is full: {self._count} requests are queued or "
                        "in flight. Collect results first, or increase max_queue_size."
                    )
                self._changed.wait()
                self._require_open()
            self._count += 1
            future = self._threads.submit(lambda: self._work(work))
        future.add_done_callback(self._give_back_cancelled)
        return future

    def _work(self, work: Callable[[], T]) -> T:
        try:
            if self._abandoned:
                raise self._closed_error()
            return work()
        finally:
            self._release_slot()  # do this first: a callback of the future may submit the next request

    def _give_back_cancelled(self, future: Future[Any]) -> None:
        if future.cancelled():  # it never started
            self._release_slot()

    def _release_slot(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()
            last = self._closed and self._count == 0
        if last:
            self._client.close()

    def _require_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> PyTritonClientClosedError:
        return PyTritonClientClosedError(f"{type(self).__name__} is closed")


def _require_size(name: str, size: int | None) -> None:
    if size is not None and size <= 0:
        raise ValueError(f"{name} must be greater than 0, or None for no limit; got {size}.")


#: Clients whose requests the process waits for at exit.
_awaited: weakref.WeakSet[FuturesModelClient] = weakref.WeakSet()


@atexit.register  # runs before connections.py closes all connections
def _wait_for_all() -> None:
    for client in list(_awaited):
        client._threads.end(wait=True)
