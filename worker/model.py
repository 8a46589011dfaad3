"""The model of one worker: its declaration, its callable, and how it answers a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytriton import buffers, request_ids
from pytriton._protocol import datatypes, messages, numpy_types
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    RequestRef,
    ResponseRef,
    TensorRef,
)
from pytriton._protocol.lanes.request_records import id_at, ids_of
from pytriton._protocol.lanes.tensors import TextError, as_text
from pytriton.decorators import context, set_triton_context
from pytriton.decorators.wrapping import ASYNCHRONOUS, kind_of
from pytriton.exceptions import HTTPError, PyTritonUnrecoverableError
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.types import Request
from pytriton.worker.callables import Infer, awaited, synchronous
from pytriton.worker.fault_reports import (
    callable_errors,
    client_text,
    is_cancellation,
    reason,
    report_error,
    response_to_error,
)
from pytriton.worker.inputs import (
    RequiredInputs,
    read_requests,
    split_requests,
    with_errors,
    without_invalid,
)
from pytriton.worker.output_buffers import OutputBuffers
from pytriton.worker.request_log import CallLog, Part, id_of, serving, trace_of
from pytriton.worker.results import Output, RefusedRequest, ResultError, ResultWriter, failure_kind
from pytriton.worker.streams import parts_of
from pytriton.worker.tracing import NO_SPANS, NoSpans, Spans, spans_of

if TYPE_CHECKING:
    import asyncio


class WorkerModel:
    """A loaded callable with its declaration.

    With `own_process`, it is the only model of this process. Otherwise it is only used in the thread that created it.
    """

    #: True for a Triton Python model that may answer at any time.
    streams = False
    own_process = True

    def __init__(
        self, spec: messages.ModelSpec, infer: Infer, log: CallLog, *, own_process: bool = True
    ) -> None:
        self.name = spec.name
        self.log = log
        self.own_process = own_process
        self.decoupled = bool(spec.config.get("model_transaction_policy", {}).get("decoupled"))
        self.asynchronous = kind_of(infer) in ASYNCHRONOUS
        #: Whether the worker may poll for batches. The autoscaler would take the time for work.
        self.may_poll = own_process and not self.decoupled and spec.autoscale is None
        self.execution_timeout_s = spec.execution_timeout_s
        #: The callable as registered. `_infer` wraps it for models that answer once.
        self.produce = infer
        #: The batches being served if one call runs at a time. Calls to other models refer to them.
        self.current_parts: Sequence[Part] = ()
        self.max_concurrency = spec.max_concurrency
        self._infer = infer if self.decoupled else synchronous(infer)
        self._most_rows: int = spec.config.get("max_batch_size", 0)
        self._batching: bool = self._most_rows > 0
        self._zero_copy = spec.zero_copy_inputs
        self.text_inputs = frozenset(spec.text_inputs)
        #: Never for sequences: a retry would apply a request to the sequence's state twice.
        self._retries = spec.on_error == "retry" and "sequence_batching" not in spec.config
        self._required = RequiredInputs(spec.name, spec.config)
        self._buffers = OutputBuffers()
        self.results = ResultWriter(
            spec.name,
            [_output(entry) for entry in spec.config["output"]],
            batching=self._batching,
            strict=spec.strict,
            chooses=spec.web is not None,
            buffers=self._buffers,
        )
        for entry in spec.config["input"]:
            # Raises now, not at the first request, if the package for a type (ml_dtypes) is missing.
            numpy_types.element_dtype(datatypes.of_config(entry["data_type"]))
        self._declared = TritonModelConfig.from_triton_config(spec.config, spec.version)
        if own_process:
            request_ids.serve(self)
            buffers.set_output_source(self._buffers.allocate)
            set_triton_context(infer, self._declared)
        else:
            request_ids.serve_in_thread(self)
            buffers.set_output_source_of_thread(self._buffers.allocate)
            context.serve_in_thread(infer, self._declared)

    def watch_readiness(self, worker: str, endpoint: str) -> None:
        """Do nothing. `LoadedPythonModel` overrides this to poll the model's `is_ready`."""

    def close(self) -> None:
        """Remove the model from pytriton's context in this process, and close its event loop."""
        context.stop_serving_in_thread(self.produce, self._declared)
        if self.asynchronous:
            from pytriton.worker import event_loops

            event_loops.close()

    @property
    def batching(self) -> bool:
        """Return True if requests have a batch axis."""
        return self._batching

    def ids_now(self) -> list[str]:
        """Return the ids of the requests that this thread or task is serving."""
        return [one for batch in self._current_batches() for one in ids_of(batch)]

    def id_of(self, ref: RequestRef) -> str:
        """Return the id of a request that this thread or task is serving."""
        return id_of(self._current_batches(), ref)

    def _current_batches(self) -> list[Batch]:
        parts = serving.get()
        return [part.batch for part in (self.current_parts if parts is None else parts)]

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop on which an asynchronous callable is created, warmed up and called."""
        from pytriton.worker import event_loops  # it imports asyncio, which takes 30 ms

        return event_loops.current()

    def warm_up(
        self, batch: Sequence[dict[str, Any]], types: Sequence[Mapping[str, str]], lane: Lane
    ) -> None:
        """Call the callable with a batch of warm-up requests.

        Check and write the answers as if they were for clients, then discard them.

        Args:
            batch: the inputs of each request: name -> array
            types: the datatypes of these inputs: name -> Triton's datatype
            lane: provides the memory for the answers

        Raises:
            Exception: anything that the callable raises, or an error in its answers.
        """
        # The references point to no memory. They only provide the batch size to compare the answers with.
        refs = [
            RequestRef(
                [TensorRef(name, "", list(one.shape), 0, 0, 0) for name, one in arrays.items()],
                "",
                [],
            )
            for arrays in batch
        ]
        for arrays in batch:
            for name in self.text_inputs & arrays.keys():
                arrays[name] = as_text(name, arrays[name].astype(object))
        for results in self._answer_warm_up([Request(arrays) for arrays in batch]):
            checked = self.results.check(results, len(refs))
            lane.arena.reset()
            for result, ref in zip(checked, refs):
                if result is not None or not self.decoupled:
                    self.results.write([result], [ref], lane)

    def _answer_warm_up(self, requests: list[Request]) -> list[Any]:
        if self.asynchronous:
            return self.event_loop().run_until_complete(self._answer_warm_up_async(requests))
        if not self.decoupled:
            return [self._infer(requests)]
        return list(parts_of(self.produce(requests)))

    async def _answer_warm_up_async(self, requests: list[Request]) -> list[Any]:
        if not self.decoupled:
            return [await awaited(self.produce(requests))]
        return await _collect(self.produce(requests))

    def requests(self, parts: Sequence[Part]) -> list[Request]:
        """Read the inputs of one batch, or of several merged ones; return the requests for the callable.

        Raises:
            LaneError, ArenaError: a reference is invalid.
            ValueError: a request of a decoupled model lacks an input.
            TextError: a text input is not UTF-8.
        """
        for part in parts if self.decoupled else ():
            for fault in self._required.find_errors(part.batch) or ():
                if fault is not None:
                    raise ValueError(fault)
        return read_requests(
            parts, batching=self._batching, zero_copy=self._zero_copy, texts=self.text_inputs
        )

    def take_mergeable(self, batch: Batch, lanes: Sequence[Lane]) -> list[Part]:
        """Receive and return the batches waiting on `lanes` that fit into one call with `batch`.

        As in Triton's own batches, all requests must have inputs of the same names, types and shapes (except for the batch
        axis), and at most `max_batch_size` rows in total.
        """
        parts: list[Part] = []
        if not self._batching or batch.alone:
            return parts
        left = self._most_rows - _row_count(batch)
        for lane in lanes:
            if left <= 0:
                break
            other = lane.peek()
            if other is None or other.alone:
                continue
            if _row_count(other) <= left and _input_types(other) == _input_types(batch):
                lane.skip()
                parts.append(Part(lane, other))
                left -= _row_count(other)
        return parts

    def answer(self, parts: Sequence[Part]) -> list[BatchDone | BatchFailed]:
        """Call the callable for one batch, or for several merged ones. Return an answer or an error for each.

        Raises:
            Unrecoverable: the callable raised PyTritonUnrecoverableError; the text is also for the clients.
        """
        if self._required.names and any(self._required.find_errors(part.batch) for part in parts):
            return [self._answer_complete(part) for part in parts]
        for part in parts:
            if part.batch.trace is not None:
                return self._answer_traced(parts)
        return self._answer(parts, self._infer)

    async def answer_async(self, part: Part) -> BatchDone | BatchFailed:
        """Answer one batch with an asynchronous callable, concurrently with other batches.

        Raises:
            Unrecoverable: the callable raised PyTritonUnrecoverableError; the text is also for the clients.
        """
        faults = self._required.find_errors(part.batch)
        if faults is None:
            return await self._answer_async(part)
        self.log.failed("input", len(faults) - faults.count(None), None)
        rest = without_invalid(part.batch, faults)
        answer: BatchDone | BatchFailed = BatchDone(rest.id, [])
        if rest.requests:
            rest_part = Part(part.lane, rest)
            serving.set([rest_part])
            answer = await self._answer_async(rest_part)
        return with_errors(answer, faults, part.batch)

    def cancelled(self, part: Part) -> BatchDone | BatchFailed:
        """Return the answer to a batch if the callable cancelled its task before the task started."""
        return self._fail([part], callable_errors()[-1](), "callable")[0]

    async def _answer_async(self, part: Part) -> BatchDone | BatchFailed:
        batch = part.batch
        try:
            requests = self.requests([part])
        except TextError as error:
            if len(batch.requests) == 1:
                return self._fail([part], error, "input")[0]
            return await self._retry_async(part)  # the others are valid
        except Exception as error:
            return self._fail([part], error, "input")[0]
        self._buffers.on_answer_read(part.lane)
        spans = spans_of(self.name, [batch]) or NO_SPANS
        with spans:
            answer = await self._call_async(part, requests, spans)
            (answer,) = self._buffers.finalize([part], [answer])
            if isinstance(answer, BatchFailed):
                spans.failed(answer.text)
        trace = trace_of(batch) if batch.trace is not None else ""
        if trace:
            self.log.traced(trace)
        return answer

    async def _call_async(
        self, part: Part, requests: list[Request], spans: Spans | NoSpans
    ) -> BatchDone | BatchFailed:
        try:
            with spans.calling(requests):
                produced = await self._call_within_limit(requests)
            results = self.results.check(produced, len(requests))
        except callable_errors() as error:
            if self._is_abandoned(error, part):
                raise
            answers = self._failed_call([part], error, len(requests))
            if answers is not None:
                return answers[0]
        else:
            return self._write_answer(part, results)
        return await self._retry_async(part)

    async def _retry_async(self, part: Part) -> BatchDone:
        part.lane.arena.reset()
        self._buffers.share(part.lane)
        alone = [Part(part.lane, one) for one in split_requests(part.batch)]
        return BatchDone(part.batch.id, [await self._retry_alone_async(one) for one in alone])

    async def _retry_alone_async(self, part: Part) -> ResponseRef:
        lane, batch = part
        serving.set([part])
        self.log.retried()
        try:
            produced = await self._call_within_limit(self.requests([part]))
            results = self.results.check(produced, 1)
            return self.results.write(results, batch.requests, lane)[0]
        except callable_errors() as error:
            if self._is_abandoned(error, part):
                raise
            return self._refuse(batch, [RefusedRequest(0, error)])[0]

    @staticmethod
    def _is_abandoned(error: BaseException, part: Part) -> bool:
        """Return True if the loop cancelled the batch because its proxy is gone."""
        return is_cancellation(error) and part.lane.fileno() < 0

    async def _call_within_limit(self, requests: list[Request]) -> Any:
        from pytriton.worker.event_loops import within_limit

        return await within_limit(awaited(self.produce(requests)), self.execution_timeout_s)

    def has_excess_memory(self, lane: Lane) -> bool:
        """Return True if a lane has more memory, after its last answers, than it keeps while it is idle."""
        return lane.arena.large or self._buffers.large(lane)

    def release_unused(self, lane: Lane) -> None:
        """Release memory that a lane has not used recently, unless its proxy may still read it."""
        lane.arena.give_back()
        self._buffers.release_unused(lane)

    def on_answer_read(self, lane: Lane) -> None:
        """Free the memory of a lane's last answer, because the proxy has read it."""
        lane.arena.reset()
        self._buffers.on_answer_read(lane)

    def _answer_traced(self, parts: Sequence[Part]) -> list[BatchDone | BatchFailed]:
        answers = self._answer_with_spans(parts)
        trace = next((found for part in parts if (found := trace_of(part.batch))), "")
        if trace:
            self.log.traced(trace)
        return answers

    def _answer_with_spans(self, parts: Sequence[Part]) -> list[BatchDone | BatchFailed]:
        spans = spans_of(self.name, [part.batch for part in parts])
        if spans is None:  # no spans can be created here
            return self._answer(parts, self._infer)
        with spans:
            answers = self._answer(parts, spans.around(self._infer))
            failed = [answer for answer in answers if isinstance(answer, BatchFailed)]
            if failed:
                spans.failed(failed[0].text)
            return answers

    def _answer(self, parts: Sequence[Part], infer: Infer) -> list[BatchDone | BatchFailed]:
        self.current_parts = parts
        self._buffers.begin(parts)
        try:
            # A separate function, so that no local variable holds the results when `finalize` runs.
            answers = self._answers(parts, infer)
        finally:
            self._buffers.end()
            self.current_parts = ()
        return self._buffers.finalize(parts, answers)

    def _answer_complete(self, part: Part) -> BatchDone | BatchFailed:
        """Answer a batch in which some requests may lack a required input. Only the requests that lack one fail."""
        faults = self._required.find_errors(part.batch)
        if faults is None:
            return self.answer([part])[0]
        self.log.failed("input", len(faults) - faults.count(None), None)
        rest = without_invalid(part.batch, faults)
        answer = (
            self.answer([Part(part.lane, rest)])[0] if rest.requests else BatchDone(rest.id, [])
        )
        return with_errors(answer, faults, part.batch)

    def _answers(self, parts: Sequence[Part], infer: Infer) -> list[BatchDone | BatchFailed]:
        try:
            requests = self.requests(parts)
        except TextError as error:
            if sum([len(part.batch.requests) for part in parts]) == 1:
                return self._fail(parts, error, "input")
            return [self._retry(part, infer) for part in parts]  # the others are valid
        except Exception as error:
            if len(parts) > 1:  # an invalid reference on one lane must not affect the others
                return [self._answers([part], infer)[0] for part in parts]
            return self._fail(parts, error, "input")
        try:
            results = self.results.check(infer(requests), len(requests))
            if len(parts) > 1:
                results = list(results)  # not every sequence supports slicing, such as a deque
        except callable_errors() as error:
            answers = self._failed_call(parts, error, len(requests))
            if answers is not None:
                return answers
        else:
            return self._write_answers(parts, results)
        return [self._retry(part, infer) for part in parts]

    @staticmethod
    def _recoverable_cause(raised: BaseException, of: Batch | Sequence[Part]) -> BaseException:
        """Return the cause of a failed call. If the cause is unrecoverable, report it and raise.

        Raises:
            Unrecoverable: the cause is a PyTritonUnrecoverableError.
        """
        error = reason(raised)
        if isinstance(error, PyTritonUnrecoverableError):
            batches = [of] if isinstance(of, Batch) else [part.batch for part in of]
            report_error(error, batches=batches)
            raise Unrecoverable(client_text(error)) from error
        return error

    def _failed_call(
        self, parts: Sequence[Part], raised: BaseException, requests: int
    ) -> list[BatchDone | BatchFailed] | None:
        """Return the answers to the batches of a call that raised; None if each request is retried individually.

        Raises:
            Unrecoverable: the callable raised PyTritonUnrecoverableError.
        """
        error = self._recoverable_cause(raised, parts)
        if requests == 1 or not self._retries or isinstance(error, ResultError):
            return self._fail(parts, error, failure_kind(error))
        what = f"the callable failed for {requests} requests at once; retrying each one alone"
        report_error(error, what, [part.batch for part in parts])
        return None

    def _retry(self, part: Part, infer: Infer) -> BatchDone:
        """Answer a batch with one call per request, so that one failing request does not fail the others.

        Each result is copied before the next call, which may reuse its memory.
        """
        lane, batch = part
        lane.arena.reset()
        lane.reads = False
        self._buffers.share(lane)
        return BatchDone(
            batch.id, [self._retry_alone(Part(lane, one), infer) for one in split_requests(batch)]
        )

    def _retry_alone(self, part: Part, infer: Infer) -> ResponseRef:
        lane, batch = part
        self.current_parts = [part]
        self.log.retried()
        try:
            # Read again: the first call may have modified its arrays.
            results = self.results.check(infer(self.requests(self.current_parts)), 1)
            return self.results.write(results, batch.requests, lane)[0]
        except callable_errors() as error:
            return self._refuse(batch, [RefusedRequest(0, error)])[0]

    def _write_answers(
        self, parts: Sequence[Part], results: Sequence[Any]
    ) -> list[BatchDone | BatchFailed]:
        if len(parts) == 1:
            return [self._write_answer(parts[0], results)]
        answers = []
        start = 0
        for part in parts:
            end = start + len(part.batch.requests)
            answers.append(self._write_answer(part, results[start:end]))
            start = end
        return answers

    def _fail(
        self, parts: Sequence[Part], error: BaseException, kind: str
    ) -> list[BatchDone | BatchFailed]:
        self.log.failed(kind, sum([len(part.batch.requests) for part in parts]), error)
        if isinstance(error, HTTPError):
            return [_refuse_all(part.batch, error) for part in parts]
        report_error(error, batches=[part.batch for part in parts])
        text = client_text(error)
        return [BatchFailed(part.batch.id, text) for part in parts]

    def _write_answer(self, part: Part, results: Sequence[Any]) -> BatchDone | BatchFailed:
        lane, batch = part
        refused: list[RefusedRequest] = []
        try:
            lane.arena.reset()
            responses = self.results.write(results, batch.requests, lane, refused)
        except Exception as error:
            self.log.failed("result", len(batch.requests), error)
            report_error(error, "the callable's result cannot be sent", [batch])
            return BatchFailed(batch.id, client_text(error))
        if refused:
            for one, response in zip(refused, self._refuse(batch, refused)):
                responses[one.place] = response
        return BatchDone(batch.id, responses)

    def _refuse(self, batch: Batch, refused: Sequence[RefusedRequest]) -> list[ResponseRef]:
        """Return the error responses of requests that failed individually, and report each distinct error once.

        Raises:
            Unrecoverable: one of the exceptions is unrecoverable.
        """
        ids: dict[str, list[str]] = {}
        refused = [
            RefusedRequest(place, self._recoverable_cause(error, batch)) for place, error in refused
        ]
        for place, error in refused:
            text = client_text(error)
            self.log.failed(failure_kind(error), 1, error)
            ids.setdefault(text, []).append(id_at(batch, place))
        for one in refused:
            of_text = ids.pop(client_text(one.error), None)
            if of_text is not None and not isinstance(one.error, HTTPError):
                report_error(one.error, ids=of_text)
        return [response_to_error(error, id_at(batch, place)) for place, error in refused]


def _refuse_all(batch: Batch, error: HTTPError) -> BatchDone:
    """Return the answer to a batch whose callable raised `HTTPError`."""
    count = len(batch.requests)
    return BatchDone(
        batch.id, [response_to_error(error, id_at(batch, place)) for place in range(count)]
    )


class Unrecoverable(Exception):
    """The callable raised PyTritonUnrecoverableError. Clients and the dispatcher get `text`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


async def _collect(produced: Any) -> list[Any]:
    if hasattr(produced, "__aiter__"):
        return [results async for results in produced]
    return [await produced]


def _row_count(batch: Batch) -> int:
    """Count the rows of a batch. A request without inputs, or with an invalid empty shape, counts as one row."""
    rows = 0
    for request in batch.requests:
        shape = request.inputs[0].shape if request.inputs else None
        rows += max(0, shape[0]) if shape else 1
    return rows


def _input_types(batch: Batch) -> list[tuple[str, str, list[int]]]:
    if not batch.requests:
        return []
    return [(ref.name, ref.datatype, ref.shape[1:]) for ref in batch.requests[0].inputs]


def _output(entry: dict[str, Any]) -> Output:
    datatype = datatypes.of_config(entry["data_type"])
    dims = entry.get("reshape", {}).get("shape", entry["dims"])
    return Output(entry["name"], datatype, numpy_types.element_dtype(datatype), tuple(dims))
