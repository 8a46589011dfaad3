"""The worker's side of `pb_utils`: its log lines, metrics and calls to other models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from pytriton import calls, pb_utils
from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient, ControlTimeout
from pytriton._protocol.errors import RemoteFailure
from pytriton._protocol.lanes.lane_messages import DELETE, MetricUpdate
from pytriton._protocol.messages import sendable
from pytriton.exceptions import PyTritonError
from pytriton.pb_utils import host

#: Maximum time to wait for the daemon's answer, in seconds.
_ANSWER_S = 10.0
#: Error texts of Triton's python backend.
_CANNOT = {
    "load": "Failed to load model",
    "unload": "Failed to unload model",
    "is_ready": "Failed to check model readiness",
}


class WorkerHost(host.Host):
    """The functions of `pb_utils` in a worker. Log lines go to standard error, from which the daemon parses their level.

    Changes to metrics are queued until a proxy has room for them. Calls to other models go through the proxy.
    """

    def __init__(self, worker: str, model_name: str, model_dir: str | None, endpoint: str) -> None:
        """Create the host for the worker named `worker`; `endpoint` is the dispatcher's."""
        self.model_name = model_name
        self.model_dir = model_dir
        self._worker = worker
        self._endpoint = endpoint
        self._updates: deque[MetricUpdate] = deque()
        self._listener: Callable[[], None] | None = None
        self._wake: Callable[[], None] | None = None
        #: Whether the model may call others: after `initialize` and before `finalize`.
        self.is_serving = False

    def metric(self, update: MetricUpdate) -> None:
        self._updates.append(update)
        if self._listener is not None:
            self._listener()

    def delete_metric(self, update: MetricUpdate) -> None:
        self._updates.append(update)
        if self._wake is not None:
            self._wake()

    def on_metric(self, listener: Callable[[], None], wake: Callable[[], None]) -> None:
        """Set the functions that are called after each change, in the thread that made the change.

        Args:
            listener: called after changes other than deletions
            wake: called after deletions; must not take a lock, because the garbage collector may call it anywhere
        """
        self._listener, self._wake = listener, wake

    @property
    def deletes_next(self) -> bool:
        """Whether the oldest change is a deletion, which must be sent to all proxies."""
        return bool(self._updates) and self._updates[0].change == DELETE

    def take_metrics(self, most: int) -> list[MetricUpdate]:
        """Remove and return up to `most` of the oldest changes: either deletions only, or other changes only."""
        taken: list[MetricUpdate] = []
        deletes = self.deletes_next
        while self._updates and len(taken) < most and self.deletes_next is deletes:
            taken.append(self._updates.popleft())
        return taken

    def control(self, action: str, model_name: str, **arguments: Any) -> bool:
        question: messages.AnyMessage
        files: dict[str, bytes] = {}
        if action == "load":
            files = arguments["files"]
            config = sendable(arguments["config"])
            question = messages.LoadOther(self._worker, sendable(model_name), config, list(files))
        elif action == "unload":
            question = messages.UnloadOther(
                self._worker, sendable(model_name), arguments["unload_dependents"]
            )
        else:
            question = messages.AskReadiness(sendable(model_name), arguments["model_version"])
        # A separate connection, because the worker's connection belongs to another thread. A load needs no timeout,
        # because this process exits with the daemon.
        timeout_s = None if action == "load" else _ANSWER_S
        try:
            with closing(ControlClient(self._endpoint)) as control:
                answer = control.ask(question, list(files.values()), timeout_s=timeout_s)
        except (RemoteFailure, ControlTimeout) as error:
            raise pb_utils.TritonModelException(f"{_CANNOT[action]}: {error}") from error
        return isinstance(answer, messages.Readiness) and answer.ready

    def infer(self, request: pb_utils.InferenceRequest, *, decoupled: bool) -> Any:
        self._require_serving()
        try:
            pending = calls.begin(_call(request, decoupled=decoupled))
        except PyTritonError as error:
            failed = _failed(error)
            return iter([failed]) if decoupled else failed
        if decoupled:
            return ResponseIterator(pending)
        delivery = pending.wait()
        assert delivery is not None  # no timeout was set
        return _response(delivery)

    def _require_serving(self) -> None:
        if not self.is_serving:  # the text of Triton's backend
            raise pb_utils.TritonModelException(
                "BLS is only supported during the 'execute' function."
            )

    async def async_infer(self, request: pb_utils.InferenceRequest, *, decoupled: bool) -> Any:
        self._require_serving()
        try:
            pending = calls.begin(_call(request, decoupled=decoupled))
        except PyTritonError as error:
            failed = _failed(error)
            return iter([failed]) if decoupled else failed
        try:
            first = await pending.wait_async()
        except BaseException:  # the task was cancelled, so nobody waits for the answer any more
            pending.cancel()
            raise
        return ResponseIterator(pending, first) if decoupled else _response(first)


class ResponseIterator(Iterator[pb_utils.InferenceResponse]):
    """Iterator over a decoupled model's responses to one request, as they arrive.

    Iteration ends after the last response, without the empty response that Triton's python backend sometimes adds. Models
    written for either behavior work.

    Args:
        pending: the call
        first: the first response, if a coroutine has awaited it, so that a plain `for` does not block its event loop
    """

    def __init__(self, pending: calls.Pending, first: calls.Delivery | None = None) -> None:
        self._pending = pending
        self._first = first
        self._ended = False
        self._cancelled = False

    def __next__(self) -> pb_utils.InferenceResponse:
        if self._ended:
            raise StopIteration
        delivery, self._first = self._first or self._pending.wait(), None
        assert delivery is not None  # no timeout was set
        self._ended = delivery.final
        if _is_empty(delivery):
            raise StopIteration
        return _response(delivery)

    def __aiter__(self) -> ResponseIterator:
        return self

    async def __anext__(self) -> pb_utils.InferenceResponse:
        if self._ended:
            raise StopAsyncIteration
        delivery, self._first = self._first or await self._pending.wait_async(), None
        self._ended = delivery.final
        if _is_empty(delivery):
            raise StopAsyncIteration
        return _response(delivery)

    def cancel(self) -> None:
        """Ask the called model to stop. Its remaining responses still arrive."""
        self._cancelled = True
        self._pending.request_cancel()

    def __del__(self) -> None:
        if self._cancelled and not self._ended:
            self._pending.cancel()  # otherwise, the remaining responses would keep their memory


def _call(request: pb_utils.InferenceRequest, *, decoupled: bool) -> calls.ModelCall:
    return calls.ModelCall(
        request.model_name(),
        {tensor.name(): tensor.as_numpy() for tensor in request.inputs()},
        outputs=sorted(request.requested_output_names()),
        version=request.model_version(),
        parameters=request.given_parameters(),
        request_id=request.request_id(),
        correlation_id=request.correlation_id(),
        flags=request.flags(),
        timeout_us=request.timeout(),
        stream=decoupled,
    )


def _is_empty(delivery: calls.Delivery) -> bool:
    nothing = delivery.error is None and not delivery.outputs and not delivery.parameters
    return delivery.final and nothing


def _response(delivery: calls.Delivery) -> pb_utils.InferenceResponse:
    if delivery.error is not None:
        code = getattr(pb_utils.TritonError, delivery.code, pb_utils.TritonError.INTERNAL)
        text = delivery.error.replace("pytriton.stream(...)", "exec(decoupled=True)")
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))
    outputs = [pb_utils.Tensor(name, array) for name, array in delivery.outputs.items()]
    return pb_utils.InferenceResponse.received(outputs, delivery.parameters)


def _failed(error: PyTritonError) -> pb_utils.InferenceResponse:
    code = getattr(pb_utils.TritonError, getattr(error, "code", ""), pb_utils.TritonError.INTERNAL)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))
