"""The model that tritonserver loads in place of the user's. It passes batches to a worker, and returns the answers.

For each instance of a registered model, a stub process of the python backend runs an instance of this one. It gets a
lane through the dispatcher and keeps it (attachment.py) until the lane is closed; then it asks for another one. A batch
that the worker had not read by then goes to the next worker unchanged. If the worker had read it, the dispatcher decides
whether to retry it (`Verdict`). streams.py handles decoupled models.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton._protocol import datatypes, messages
from pytriton._protocol.control import ControlClient
from pytriton._protocol.errors import RemoteFailure, with_id
from pytriton._protocol.lanes.arena import ArenaError
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError, LaneSilent
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    BatchTrace,
    FromProxy,
    FromWorker,
    ResponseRef,
)
from pytriton._protocol.lanes.request_records import given_id, id_at
from pytriton._protocol.parameters import (
    CONTROL_PARAMETER,
    PYTHON_MODEL_PARAMETER,
    REGISTRATION_PARAMETER,
    STAND_IN_PARAMETER,
    VERSIONS_PARAMETER,
)
from pytriton.proxy_backend.python_proxy import translate
from pytriton.proxy_backend.python_proxy.attachment import Attachment
from pytriton.proxy_backend.python_proxy.calls import ProxyCalls
from pytriton.proxy_backend.python_proxy.chains import Circular, check_chain
from pytriton.proxy_backend.python_proxy.streams import Streams
from pytriton.proxy_backend.python_proxy.translate import Regions, trace_of


class Overdue(Exception):
    """A batch has taken too long.

    Attributes:
        verdict: the dispatcher's decision about the batch
        was_read: whether the hung worker had read the batch
    """

    def __init__(self, verdict: messages.Verdict, *, was_read: bool) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict
        self.was_read = was_read


class TritonPythonModel:
    """The class that Triton's python backend instantiates and calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Attach to a worker. The model becomes ready when all its proxies have attached."""
        config = json.loads(args["model_config"])
        _make_regions_private()
        self._name = args["model_name"]
        stand_in = config["parameters"].get(STAND_IN_PARAMETER)
        self._stand_in: str | None = stand_in and stand_in["string_value"]
        if self._stand_in is not None:
            return
        # Triton may briefly have two instances of one name, while it changes their number or replaces one.
        instance = f"{args['model_instance_name']}:{os.getpid()}"
        python_model = config["parameters"].get(PYTHON_MODEL_PARAMETER, {}).get("string_value")
        self._details = python_model is not None
        translator = translate.Translator(
            self._name,
            datatypes.of_inputs(config),
            args["model_version"] if VERSIONS_PARAMETER in config["parameters"] else None,
            details=self._details,
            max_sequence_id=datatypes.max_sequence_id(config),
            batching=config.get("max_batch_size", 0) > 0,
        )
        control = ControlClient(_parameter(config, CONTROL_PARAMETER))
        registration = _parameter(config, REGISTRATION_PARAMETER)
        calls = ProxyCalls(translator, _parameter(config, CONTROL_PARAMETER))
        version = int(args["model_version"])
        attachment = Attachment(control, registration, instance, calls, version)
        decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self._translator, self._attachment = translator, attachment
        self._streams = None
        if decoupled or python_model == "streams":
            waits = python_model is not None
            self._streams = Streams(self._name, attachment, translator, until_returned=waits)
        self._lane: Lane | None = None
        self._sent: Batch | None = None
        self._waited_on = False
        self._worker_ends = False  #: it answered late: the dispatcher is already ending it
        self._read_since: float | None = None
        self._batch_id = 0
        try:
            if self._streams is not None:
                self._streams.attach_early()
            else:
                self._use(attachment.attach_early())
        except RemoteFailure as failure:
            raise pb_utils.TritonModelException(failure.text) from failure

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer a batch.

        For a decoupled model, return None when a worker has begun the batch; response senders send the answers.
        """
        if self._stand_in is not None:
            return [translate.unavailable(self._stand_in) for _ in requests]
        if self._streams is not None:
            self._streams.begin(requests)
            return None
        try:
            return self._execute(requests)
        except (UnicodeDecodeError, translate.WrongSequenceId) as error:
            # Nothing was sent to a worker yet.
            return self._execute_readable(requests, error)

    def _execute(self, requests: Sequence[Any]) -> list[Any]:
        attempts = BatchAttempts(len(requests))
        attempts.taken_ns = time.monotonic_ns()
        responses: list[Any] = []
        while (now := attempts.next()) is not None:
            responses += self._try(requests, requests[now], attempts)
        return responses

    def _try(
        self, batch: Sequence[Any], requests: Sequence[Any], attempts: BatchAttempts
    ) -> list[Any]:
        """Send the requests of this attempt to a worker. Return their responses, or [] if the requests must be
        retried.
        """
        self._sent = None
        trace = trace_of(requests) if self._attachment.tracing else None
        try:
            lane = self._lane or self._attach()
            try:
                answer = self._exchange(requests, lane, trace, attempts)
                responses = self._responses(requests, lane, answer, lasting=attempts.apart)
                attempts.answered()
                if self._worker_ends:
                    self._drop_lane()
                return responses
            except LaneClosed as end:
                if end.unread:
                    self._drop_lane()
                    return []
                attempts.lost_workers += 1
                verdict = self._attachment.judge_loss(**self._facts(attempts))
                self._drop_lane()
                return self._handle_loss(batch, attempts, verdict)
            except Overdue as overdue:
                self._drop_lane()
                attempts.lost_workers += overdue.was_read
                return (
                    self._handle_loss(batch, attempts, overdue.verdict) if overdue.was_read else []
                )
            except Circular as circular:
                self._drop_lane()
                self._attachment.avoid = circular.waiting
                return []
        except RemoteFailure as failure:
            return self._fail(batch, attempts, failure.text, fails_rest=True)
        except (ArenaError, LaneError, messages.MalformedMessage) as error:
            self._drop_lane()
            return self._fail(batch, attempts, f"model {self._name}: {error}")

    def _handle_loss(
        self, batch: Sequence[Any], attempts: BatchAttempts, verdict: messages.Verdict
    ) -> list[Any]:
        if attempts.lost(verdict):
            return []
        return self._fail(batch, attempts, verdict.text, fails_rest=verdict.fails_rest)

    def _fail(
        self, batch: Sequence[Any], attempts: BatchAttempts, text: str, *, fails_rest: bool = False
    ) -> list[Any]:
        """Fail the requests of this attempt (with `fails_rest`, all remaining requests). Each error contains the
        request's id.
        """
        first = attempts.done
        left = batch[first : first + attempts.answered(failed=True, fails_rest=fails_rest)]
        return [
            translate.unavailable(with_id(text, self._name_of(one, at)))
            for at, one in enumerate(left)
        ]

    def _facts(self, attempts: BatchAttempts) -> dict[str, Any]:
        sent = self._sent
        alone = sent is not None and len(sent.requests) == 1
        return {**attempts.facts(), "request_id": id_at(sent, 0) if sent and alone else ""}

    def _name_of(self, request: Any, place: int) -> str:
        """Return the id of a request, given its index in this attempt; "" if it has none."""
        sent = self._sent
        if sent is not None and place < len(sent.requests):
            return id_at(sent, place)
        return given_id(self._translator.without_inputs(request))

    def _execute_readable(self, requests: Sequence[Any], error: ValueError) -> list[Any]:
        """Answer a batch in which some requests have invalid UTF-8 or a wrong sequence id. Only those requests fail."""
        refusals = self._translator.refusals(requests)
        readable = [one for one, refusal in zip(requests, refusals) if refusal is None]
        if len(readable) == len(requests):
            raise error  # it has another cause
        answers = iter(self._execute(readable) if readable else ())
        return [
            next(answers) if text is None else translate.refused(self._named(text, request))
            for text, request in zip(refusals, requests)
        ]

    def _named(self, text: str, request: Any) -> str:
        return with_id(text, given_id(self._translator.without_inputs(request)))

    def finalize(self) -> None:
        """Detach from the worker and from the dispatcher."""
        if self._stand_in is not None:
            return
        if self._streams is not None:
            self._streams.end()
        self._attachment.close()

    def _exchange(
        self, requests: Sequence[Any], lane: Lane, trace: BatchTrace | None, attempts: BatchAttempts
    ) -> BatchDone | BatchFailed:
        """Send the batch to the worker, and return the answer.

        Raises:
            LaneClosed: the lane was closed before the answer arrived.
            Overdue: the batch has taken too long.
            Circular: the worker itself waits for this batch.
        """
        self._read_since = None
        self._batch_id += 1
        refs = self._translator.requests(requests, lane)
        check_chain(refs, self._attachment.worker)
        rows = self._translator.count_rows(refs)
        self._sent = Batch(
            self._batch_id, refs, trace, False, attempts.apart, attempts.taken_ns, rows
        )
        lane.send(self._sent)
        answer = None
        while answer is None:
            try:
                answer = lane.receive()
            except LaneSilent:  # noqa: PERF203, it is rare
                answer = self._wait_on(lane, attempts)
        if self._waited_on:
            self._waited_on = False
            lane.set_receive_timeout(self._attachment.execution_timeout_s)
        self._translator.release_inputs(lane)
        if isinstance(answer, (BatchDone, BatchFailed)) and answer.id == self._batch_id:
            return answer
        raise LaneError(f"the worker answered batch {self._batch_id} with {answer!r:.100}")

    def _responses(
        self,
        requests: Sequence[Any],
        lane: Lane,
        answer: BatchDone | BatchFailed,
        *,
        lasting: bool,
    ) -> list[Any]:
        """Convert the answers to stub responses.

        `lasting` means that another batch may be sent before tritonserver gets these responses.
        """
        self._translator.lasting = lasting
        if isinstance(answer, BatchFailed):
            return [self._failure(answer.text, place) for place in range(len(requests))]
        if len(answer.responses) != len(requests):
            raise LaneError(
                f"the worker returned {len(answer.responses)} responses to {len(requests)} requests"
            )
        if self._details:
            return [
                self._detailed(request, ref, lane)
                for request, ref in zip(requests, answer.responses)
            ]
        return self._translator.responses(answer.responses, lane)

    def _failure(self, text: str, place: int) -> Any:
        """Return the error response to a request. An error from a model.py keeps Triton's wording, without the
        request's id.
        """
        if self._details or self._sent is None:
            return translate.failure(text)
        return translate.failure(with_id(text, id_at(self._sent, place)))

    def _detailed(self, request: Any, ref: ResponseRef, lane: Lane) -> Any:
        if ref.details is not None and ref.details.reschedule:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        return self._translator.response(ref, lane)

    def _wait_on(self, lane: Lane, attempts: BatchAttempts) -> FromWorker | FromProxy | None:
        """Ask the dispatcher what to do about an overdue batch, and extend the timeout if the dispatcher allows it.

        If the dispatcher does not, return the answer if it has arrived in the meantime.

        Raises:
            Overdue: the dispatcher considers the worker hung.
        """
        was_read = lane.all_read()
        verdict = self._attachment.judge_overdue(
            was_read=was_read, since=self._read_since, **self._facts(attempts)
        )
        if was_read and self._read_since is None:
            self._read_since = time.monotonic()
        if verdict.action == "wait":
            lane.set_receive_timeout(verdict.wait_s)
            self._waited_on = True
            return None
        try:
            answer = lane.receive(wait=False)
        except (LaneSilent, LaneClosed, LaneError):
            raise Overdue(verdict, was_read=was_read) from None
        self._worker_ends = True
        return answer

    def _attach(self) -> Lane:
        lane = self._attachment.attach()
        self._use(lane)
        return lane

    def _use(self, lane: Lane | None) -> None:
        self._lane = lane
        if lane is not None:
            lane.set_receive_timeout(self._attachment.execution_timeout_s)

    def _drop_lane(self) -> None:
        self._attachment.drop()
        self._lane = None
        self._waited_on = self._worker_ends = False
        self._translator.forget_lane()


def _parameter(config: dict[str, Any], name: str) -> str:
    value: str = config["parameters"][name]["string_value"]
    return value


def _make_regions_private() -> None:
    """Make this process's shared memory accessible only to its own user, in case the daemon was unable to."""
    for path in Regions().paths():
        os.chmod(path, 0o600)


# ── the attempts to serve a batch ────────────────────────────────────────────────────────────────────
#
# First, all requests are tried together. If a worker is lost with them, they are tried individually:
#
#     requests   [ answered … | this attempt | … not yet tried individually ]
#                 0           done           end                            count
#
# One of the requests may crash or hang the worker. Tried individually, only that request fails.


@dataclass
class BatchAttempts:
    """The progress of a batch of `count` requests.

    Attributes:
        done: number of requests answered so far, in order.
        end: end of this attempt, which starts at `done`.
        apart: whether the requests are tried individually.
        lost_workers: number of workers lost with the requests of this attempt.
        consecutive_losses: number of individually tried requests in a row that lost a worker.
        taken_ns: when tritonserver passed the batch to the backend (CLOCK_MONOTONIC).
    """

    count: int
    done: int = 0
    end: int = 0
    apart: bool = False
    lost_workers: int = 0
    consecutive_losses: int = 0
    taken_ns: int = 0

    def __post_init__(self) -> None:
        self.end = self.count

    def next(self) -> slice | None:
        """Return the slice of requests to try now; None when all are answered."""
        if self.done == self.count:
            return None
        if self.done == self.end:  # try the next request alone; a worker was lost with it before
            self.end += 1
            self.lost_workers = 1
        return slice(self.done, self.end)

    def answered(self, *, failed: bool = False, fails_rest: bool = False) -> int:
        """Count the requests of this attempt (with `fails_rest`, all remaining requests) as answered. Return their
        number.
        """
        if not failed:
            self.consecutive_losses = 0
        before, self.done = self.done, self.count if fails_rest else self.end
        return self.done - before

    def lost(self, verdict: messages.Verdict) -> bool:
        """Apply the verdict about an attempt that lost a worker. Return True if its requests are to be retried."""
        self.consecutive_losses += self.apart
        if verdict.action == "fail":
            return False
        self.apart = True
        self.end = self.done + 1
        return True

    def facts(self) -> dict[str, Any]:
        """Return the fields of `LaneLost` and `BatchOverdue` that describe this attempt."""
        consecutive_losses = self.consecutive_losses + 1 if self.apart else 0
        return {
            "lost_workers": self.lost_workers,
            "requests": self.end - self.done,
            "consecutive_losses": consecutive_losses,
        }
