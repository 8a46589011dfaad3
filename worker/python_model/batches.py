"""A loaded Triton Python model in a worker, which answers batches with the model's `execute`.

    requests on the lane ──▶ pb_utils requests ──▶ execute ──▶ pb_utils responses ──▶ the lane

If `execute` returns the responses, the general loop (loop.py) serves the model. If responses may come at any time,
decoupled_loop.py does.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton import pb_utils, request_ids
from pytriton._protocol import messages, numpy_types
from pytriton._protocol.errors import described, for_client
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneError
from pytriton._protocol.lanes.lane_messages import (
    BatchDone,
    BatchFailed,
    RequestDetails,
    RequestRef,
    ResponseDetails,
    ResponseRef,
    TensorRef,
)
from pytriton._protocol.parameters import CHAIN_PARAMETER, HANDLE_PARAMETER
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.pb_utils import host
from pytriton.pb_utils.helpers import serialize_byte_tensor
from pytriton.worker.fault_reports import callable_errors, cut_for_client, reason, report_error
from pytriton.worker.model import Unrecoverable, WorkerModel
from pytriton.worker.output_buffers import OutputBuffers
from pytriton.worker.python_model.backend_host import WorkerHost
from pytriton.worker.python_model.readiness import ReadinessPoller
from pytriton.worker.request_log import CallLog, Part
from pytriton.worker.results import write_or_lend


class WrongReturn(pb_utils.TritonModelException):
    """`execute` returned an invalid result; the text describes the error."""


#: Error of a request that was both rescheduled and answered.
ANSWERED = "A rescheduled request has been answered by its response sender already: it cannot be queued again."
_RESCHEDULE = ResponseRef([], None, ResponseDetails(reschedule=True))
#: Internal parameters of requests that another model made.
_OURS = (CHAIN_PARAMETER, HANDLE_PARAMETER)
_NO_DETAILS = RequestDetails()


class LoadedPythonModel(WorkerModel):
    """A Triton Python model, with the object that was created from the model's class."""

    def __init__(
        self, spec: messages.ModelSpec, instance: Any, instance_name: str, log: CallLog
    ) -> None:
        assert spec.python_model is not None
        self.name = spec.name
        self.log = log
        self.decoupled = bool(spec.config.get("model_transaction_policy", {}).get("decoupled"))
        self.may_poll = not self.decoupled and spec.autoscale is None
        self.asynchronous = False
        self.streams = spec.python_model.streams or self.decoupled
        self.execution_timeout_s = spec.execution_timeout_s
        self.instance_name = instance_name
        self.current_parts: Sequence[Part] = ()
        request_ids.serve(self)
        self._version = spec.version
        self._most_rows = spec.config.get("max_batch_size", 0)
        self._batching = self._most_rows > 0
        self._outputs = [entry["name"] for entry in spec.config.get("output", ())]
        self._zero_copy = spec.zero_copy_inputs
        self._instance = instance
        self._buffers = OutputBuffers()  # it uses none
        self._events: asyncio.AbstractEventLoop | None = None
        self._watch: ReadinessPoller | None = None

    def watch_readiness(self, worker: str, endpoint: str) -> None:
        """Start polling the model's `is_ready`, if it has one, and reporting the result to the dispatcher."""
        is_ready = getattr(self._instance, "is_ready", None)
        if is_ready is not None:
            self._watch = ReadinessPoller(worker, endpoint, is_ready)

    def close(self) -> None:
        """Stop polling `is_ready`, and call the model's `finalize`. Its exceptions are only logged."""
        if self._watch is not None:
            self._watch.stop()
        finalize = getattr(self._instance, "finalize", None)
        ours = host.current()
        if isinstance(ours, WorkerHost):
            ours.is_serving = False
        if finalize is None:
            return
        try:
            finalize()
        except callable_errors() as error:
            report_error(error, f"finalize of model {self.name} failed")

    def incoming(self, refs: Sequence[RequestRef], lane: Lane) -> list[pb_utils.InferenceRequest]:
        """Return the requests of a batch for `execute`, with their inputs copied from Triton's memory.

        Raises:
            LaneError, ArenaError: a reference is invalid.
        """
        return [self._request(ref, lane) for ref in refs]

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> Any:
        """Call the model's `execute` and return its result, which may be awaitable."""
        return self._instance.execute([*requests])  # a copy, because the model may empty the list

    def warm_up(
        self, batch: Sequence[dict[str, Any]], types: Sequence[Mapping[str, str]], lane: Lane
    ) -> None:
        """Call `execute` with warm-up requests; see `WorkerModel.warm_up`.

        Raises:
            Exception: anything that `execute` raises, or an error in its result.
            TritonModelException: a response contains an error.
        """
        requests = [
            pb_utils.InferenceRequest.incoming(
                [pb_utils.Tensor.of(name, array, kinds[name]) for name, array in arrays.items()],
                self._outputs,
                "",
                request_id="",
                correlation_id=0,
                flags=0,
                timeout=0,
                trace=None,
                model=(self.name, self._version),
            )
            for arrays, kinds in zip(batch, types)
        ]
        lane.arena.reset()
        wanted = RequestRef([], "", self._outputs)
        for response in self._responses_to(requests):
            error = response.error()
            if error is not None:
                raise pb_utils.TritonModelException(error.message())
            self.write_response(response, wanted, lane, final=False)

    def _responses_to(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        if not self.streams:
            return [one for one in self._responses(requests) if one is not None]
        waiting = [_WarmUpRequest(request, decoupled=self.decoupled) for request in requests]
        returned = self.execute(requests)
        if inspect.isawaitable(returned):
            returned = self._awaited(returned)
        responses = streamed_responses(returned, requests, self)
        again = [one.rescheduled for one in requests]
        requests.clear()  # an unanswered request is detected when nothing refers to it and its sender any more
        found: list[pb_utils.InferenceResponse] = []
        for response, one_request, queued in zip(responses, waiting, again):
            if response is not None:
                found.append(response)
            elif not queued:
                found += one_request.wait()
        return found

    def answer(self, parts: Sequence[Part]) -> list[BatchDone | BatchFailed]:
        """Call `execute` for one batch, or for several merged ones; return the answer to each.

        Raises:
            Unrecoverable: the model raised PyTritonUnrecoverableError; the text is also for the clients.
        """
        try:
            requests = [
                one for part in parts for one in self.incoming(part.batch.requests, part.lane)
            ]
        except Exception as error:
            if len(parts) > 1:  # an invalid reference on one lane must not affect the others
                return [self.answer([part])[0] for part in parts]
            return [self.fail_unreadable(parts[0], error)]
        self.current_parts = parts
        try:
            responses = self._responses(requests)
        except callable_errors() as raised:
            cause = reason(raised)
            report_error(cause, "the model's execute failed", [part.batch for part in parts])
            if isinstance(cause, PyTritonUnrecoverableError):
                raise Unrecoverable(self.failure(cause)) from cause
            count = sum([len(part.batch.requests) for part in parts])
            self.log.failed(failure_of(cause), count, cause)
            return [BatchFailed(part.batch.id, self.failure(cause)) for part in parts]
        finally:
            self.current_parts = ()
        answers: list[BatchDone | BatchFailed] = []
        start = 0
        for part in parts:
            end = start + len(part.batch.requests)
            answers.append(self._write_responses(part, responses[start:end]))
            start = end
        return answers

    def fail_unreadable(self, part: Part, error: Exception) -> BatchFailed:
        """Report that a batch's inputs cannot be read, and return its answer.

        Either a reference is invalid, or there is not enough memory for a copy.
        """
        self.log.failed("input", len(part.batch.requests), error)
        report_error(error, "the inputs of a batch cannot be read", [part.batch])
        return BatchFailed(part.batch.id, self.failure(error))

    def failure(self, error: BaseException) -> str:
        """Return the error that clients get when `execute` fails, in one line, as Triton's python backend words it."""
        text = str(error) if isinstance(error, WrongReturn) else described(error)
        return for_client(
            f"Failed to process the request(s) for model '{self.instance_name}', message: {text}"
        )

    def write_response(
        self, response: pb_utils.InferenceResponse, request: RequestRef, lane: Lane, *, final: bool
    ) -> ResponseRef:
        """Write the requested outputs of a response to the lane's arena; return a reference to the response.

        Raises:
            ArenaError: not enough memory.
        """
        error = response.error()
        if error is not None:
            self.log.failed("callable", 1, None)
            details = ResponseDetails(error.code().name, final=final)
            return ResponseRef([], cut_for_client(error.message()), details)
        parameters = response.parameters()
        more = None
        if final or len(parameters) > 2:
            more = ResponseDetails("", parameters if len(parameters) > 2 else "", final)
        requested = request.requested
        outputs = [
            _write_or_lend(tensor, lane)
            for tensor in response.output_tensors()
            if not requested or tensor.name() in requested
        ]
        return ResponseRef(outputs, None, more)

    def _responses(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse | None]:
        """Call `execute`; return the response to each request, or None for a request that Triton must requeue."""
        senders = [_OnlySender(request) for request in requests]
        returned = self.execute(requests)
        if inspect.isawaitable(returned):
            returned = self._awaited(returned)
        if returned is None and any(sender.asked for sender in senders):
            returned = [None] * len(requests)
        check_responses(returned, requests)
        for index, (request, sender) in enumerate(zip(requests, senders)):
            if request.rescheduled and sender.answered:
                raise WrongReturn(ANSWERED)
            if returned[index] is None and not request.rescheduled:
                returned[index] = sender.wait()
        return list(returned)

    def _write_responses(
        self, part: Part, responses: Sequence[pb_utils.InferenceResponse | None]
    ) -> BatchDone | BatchFailed:
        lane, batch = part
        try:
            lane.arena.reset()
            refs = [
                _RESCHEDULE
                if response is None
                else self.write_response(response, request, lane, final=False)
                for response, request in zip(responses, batch.requests)
            ]
        except Exception as error:
            self.log.failed("result", len(batch.requests), error)
            report_error(error, "the result of execute cannot be sent", [batch])
            return BatchFailed(batch.id, self.failure(error))
        return BatchDone(batch.id, refs)

    def _awaited(self, awaitable: Any) -> Any:
        if self._events is None:
            self._events = asyncio.new_event_loop()
            asyncio.set_event_loop(self._events)
        return self._events.run_until_complete(awaitable)

    def _request(self, ref: RequestRef, lane: Lane) -> pb_utils.InferenceRequest:
        details = ref.details or _NO_DETAILS
        return pb_utils.InferenceRequest.incoming(
            [self._tensor(tensor, lane) for tensor in ref.inputs],
            ref.requested,
            _without_ours(ref.parameters),
            request_id=ref.request_id,
            correlation_id=details.correlation_id,
            flags=details.flags,
            timeout=details.timeout,
            trace=details.trace,
            model=(self.name, self._version),
        )

    def _tensor(self, ref: TensorRef, lane: Lane) -> pb_utils.Tensor:
        if ref.datatype == "BYTES":
            array = tensors.decode_bytes(tensors.read_raw(lane, ref), ref.shape)
        else:
            array = tensors.read(lane, ref, numpy_types.NUMERIC[ref.datatype])
            if not self._zero_copy:
                array = array.copy()
        return pb_utils.Tensor.of(ref.name, array, ref.datatype)


class _OnlySender:
    """Response sender of a request that must be answered before the call to `execute` counts as done."""

    def __init__(self, request: pb_utils.InferenceRequest) -> None:
        self.asked = False
        self._sender = pb_utils.ResponseSender(self._take, lambda: False, decoupled=False)
        self._came = threading.Event()
        self._response: pb_utils.InferenceResponse | None = None
        request.bind(self._given, lambda: False)

    @property
    def answered(self) -> bool:
        """Return True if the model has sent the response."""
        return self._came.is_set()

    def wait(self) -> pb_utils.InferenceResponse | None:
        """Wait for the response and return it.

        Raises:
            WrongReturn: the model never requested this sender.
        """
        if not self.asked:
            raise WrongReturn(
                "execute returned no response to a request and did not obtain the response sender of that request"
            )
        self._came.wait()
        return self._response

    def _given(self) -> pb_utils.ResponseSender:
        self.asked = True
        return self._sender

    def _take(self, response: pb_utils.InferenceResponse | None, final: bool) -> None:
        self._response = response
        self._came.set()


class _WarmUpRequest:
    """A warm-up request that the model may answer at any time, from any thread."""

    def __init__(self, request: pb_utils.InferenceRequest, *, decoupled: bool) -> None:
        self._decoupled = decoupled
        self._responses: list[pb_utils.InferenceResponse] = []
        self._ended = threading.Event()
        self._write_answers = False
        sender = pb_utils.ResponseSender(
            _WarmUpAnswering(self).send, lambda: False, decoupled=decoupled
        )
        request.bind(lambda: sender, lambda: False)

    def take(self, response: pb_utils.InferenceResponse | None, final: bool) -> None:
        """Store a response. `final` means that it is the last one."""
        if response is not None:
            self._responses.append(response)
        if final:
            self._write_answers = True
            self._ended.set()

    def release(self) -> None:
        """Record that the request can no longer be answered."""
        self._ended.set()

    def wait(self) -> list[pb_utils.InferenceResponse]:
        """Wait for the last response; return all responses.

        Raises:
            WrongReturn: the model released the request before answering it.
        """
        self._ended.wait()
        if not self._write_answers:
            raise WrongReturn(unanswered(decoupled=self._decoupled))
        return self._responses


class _WarmUpAnswering:
    """Object to which only a request and its sender refer. When both are gone, it notifies `_WarmUpRequest`."""

    def __init__(self, one_request: _WarmUpRequest) -> None:
        self._request = one_request

    def __del__(self) -> None:
        self._request.release()

    def send(self, response: pb_utils.InferenceResponse | None, final: bool) -> None:
        self._request.take(response, final)


def unanswered(*, decoupled: bool) -> str:
    """Return the error text for a request that can no longer be answered."""
    missing = "TRITONSERVER_RESPONSE_COMPLETE_FINAL" if decoupled else "a response"
    return (
        "The request can no longer be answered: the model released it and its response sender without "
        f"{missing}."
    )


def streamed_responses(
    returned: Any, requests: Sequence[pb_utils.InferenceRequest], model: LoadedPythonModel
) -> list[pb_utils.InferenceResponse | None]:
    """Check what `execute` has returned, for a model that may answer at any time. Return a response or None for each
    request.

    Raises:
        WrongReturn: the result is invalid, or the model is decoupled and returned a response.
    """
    responses: list[Any] = [None] * len(requests) if returned is None else returned
    check_responses(responses, requests)
    if model.decoupled and any(response is not None for response in responses):
        raise WrongReturn(
            f"Python model '{model.instance_name}' is using the decoupled mode and the execute function must return "
            "None."
        )
    return responses


def failure_of(error: BaseException) -> str:
    """Return the member of stats_page.FAILURES that describes the exception that made a batch fail."""
    if isinstance(reason(error), PyTritonUnrecoverableError):
        return "unrecoverable"
    if isinstance(error, (LaneError, ArenaError)):
        return "input"
    return "result" if isinstance(error, WrongReturn) else "callable"


def check_responses(returned: Any, requests: Sequence[pb_utils.InferenceRequest]) -> None:
    """Check that a result is a list with a response or None for each request. For a rescheduled request, it must be
    None.

    Raises:
        WrongReturn: the result is invalid. The text is that of Triton's python backend.
    """
    count = len(requests)
    if not isinstance(returned, list):
        raise WrongReturn(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != count:
        raise WrongReturn(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{count}, and InferenceResponse(s) size is:{len(returned)}"
        )
    for request, response in zip(requests, returned):
        if response is None:
            continue
        if request.rescheduled:
            raise WrongReturn(
                "Expected a None object in the execute function return list for reschduled request, found type "
                f"'{type(response)}'."
            )
        if not isinstance(response, pb_utils.InferenceResponse):
            raise WrongReturn(
                "Expected an 'InferenceResponse' object in the execute function return list, found type "
                f"'{type(response)}'."
            )


def instance_arguments(spec: messages.ModelSpec, instance: int) -> dict[str, str]:
    """Return the arguments that the model's `initialize` receives in the instance with this number."""
    model = spec.python_model
    assert model is not None
    which = instance % len(model.names)
    name = model.names[which]
    if instance >= len(model.names):  # a standby worker, or one added by scaling
        name = f"{spec.name}_0_{instance}"
    return {
        "model_config": model.model_config,
        "model_instance_kind": model.kinds[which],
        "model_instance_name": name,
        "model_instance_device_id": model.device_ids[which],
        "model_repository": model.folder,
        "model_version": str(spec.version),
        "model_name": spec.name,
    }


def _without_ours(parameters: str) -> str:
    """Return a request's parameters without our internal ones, which are added to calls from other models."""
    if not any(ours in parameters for ours in _OURS):
        return parameters
    found = json.loads(parameters)
    for ours in _OURS:
        found.pop(ours, None)
    return json.dumps(found, separators=(",", ":"))


def _write_or_lend(tensor: pb_utils.Tensor, lane: Lane) -> TensorRef:
    array = tensor.raw
    if tensor.datatype == "BYTES":
        data = serialize_byte_tensor(array) or b""
        return tensors.write_raw(lane, tensor.name(), "BYTES", array.shape, data)
    return write_or_lend(lane, tensor.name(), tensor.datatype, array, array.dtype)
