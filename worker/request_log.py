"""The batches that a worker is serving, and its records of individual requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple, Protocol, Union

from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    RequestRef,
    ResponseRef,
)
from pytriton._protocol.lanes.request_records import (
    RequestRecord,
    given_id,
    id_at,
    parse_json_object,
    trace_id,
)
from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton._protocol.parameters import VERSION_PARAMETER
from pytriton.exceptions import HTTPError
from pytriton.worker.fault_reports import reason


class Part(NamedTuple):
    """A batch, and the lane on which it arrived and is answered."""

    lane: Lane
    batch: Batch


#: The batches that the current task of an event loop serves; None outside of such a task.
serving: ContextVar[Sequence[Part] | None] = ContextVar("pytriton_serving", default=None)

#: Status of a request that succeeded.
OK = "ok"
_NUMBER = re.compile(r"[0-9]{1,18}")
#: Maximum number in a record. Numbers that a proxy sends may be larger.
_MAX_INT64 = (1 << 63) - 1
#: Stands for a size that was not recorded.
UNKNOWN = -1
#: Maximum length of an exception type's name.
_MAX_TYPE = 100


class AnsweredStream(Protocol):
    """What the request log records about a stream that has ended. One stream answers all requests of a batch."""

    @property
    def failure(self) -> str:
        """Why the stream failed: one of stats_page.FAILURES, or "" if it succeeded."""

    @property
    def error(self) -> str:
        """The type of the exception that failed the stream, from `type_of`; "" if it succeeded."""

    @property
    def bytes_out(self) -> int | None:
        """Size of the answers in bytes; None if it was not recorded."""


#: The answers of one call: one per batch, or a stream.
Answers = Union[Sequence[Union[BatchDone, BatchFailed]], AnsweredStream]


class _Outcome(NamedTuple):
    """How one request ended."""

    batch: Batch
    place: int
    status: str
    bytes_out: int
    error: str = ""


class CallLog:
    """Receives a model's reports about its calls. This class ignores them; `RequestLog` records them."""

    def failed(self, kind: str, requests: int, error: BaseException | None = None) -> None:
        """Count failed requests of the current call; `kind` is one of stats_page.FAILURES."""

    def retried(self) -> None:
        """Restart the clock of the current call: the callable is being called again, for only one of the requests."""

    def traced(self, trace: str) -> None:
        """Record the trace id of a traced call that is about to end."""


class RequestLog(CallLog):
    """Writer of one worker's request records. The statistics page selects the calls to record.

    Attributes:
        stats: the worker's end of its statistics page
    """

    def __init__(self, stats_fd: int) -> None:
        """Take ownership of a descriptor of the statistics page."""
        self._failure = self._error = ""
        self.stats = WorkerStatsPage(stats_fd, self._note)

    def failed(self, kind: str, requests: int, error: BaseException | None = None) -> None:
        """Count failed requests of the current call, and keep the reason to include in its request records."""
        self._failure, self._error = kind, "" if error is None else type_of(error)
        self.stats.failed(kind, requests)

    def retried(self) -> None:
        """Restart the clock of the current call on the statistics page."""
        self.stats.restarted()

    def traced(self, trace: str) -> None:
        """Record the trace id of the current call on the statistics page."""
        self.stats.traced(trace)

    def _note(self, begun_ns: int, ended_ns: int, parts: Sequence[Part], answers: Answers) -> None:
        ring = self.stats.records
        kind, self._failure = self._failure or "callable", ""
        error, self._error = self._error, ""
        budget = ring.budget
        records: list[RequestRecord] = []
        if budget and parts:
            outcomes = list(_outcomes(parts, answers, kind, error))
            rows = sum([part.batch.rows for part in parts]) or len(outcomes)
            for one in (outcomes if ring.all_wanted else _representative(outcomes))[:budget]:
                batch = one.batch
                queue_ns = begun_ns - batch.taken_ns if 0 < batch.taken_ns <= begun_ns else -1
                records.append(
                    RequestRecord(
                        id=id_at(batch, one.place),
                        status=one.status,
                        ended_ns=ended_ns,
                        queue_ns=queue_ns,
                        compute_ns=ended_ns - begun_ns,
                        requests=len(outcomes),
                        rows=_bounded(rows),
                        bytes_in=_bounded(
                            sum([ref.nbytes for ref in batch.requests[one.place].inputs])
                        ),
                        bytes_out=_bounded(one.bytes_out, UNKNOWN),
                        version=_version(batch.requests[one.place]),
                        error=one.error,
                    )
                )
        ring.write(records)


def _bounded(number: int, least: int = 0) -> int:
    """Clamp a number, which a proxy may have chosen freely, to the range that a record can hold."""
    return max(least, min(number, _MAX_INT64))


def type_of(error: BaseException) -> str:
    """Return the name of an exception's type, shortened to fit into a record. For an `HTTPError`, it includes the
    status.
    """
    cause = reason(error)
    name = type(cause).__name__[:_MAX_TYPE]
    return f"{name} {cause.status}" if isinstance(cause, HTTPError) else name


def nbytes_of(response: ResponseRef | None) -> int:
    """Return the size of an answer's outputs in bytes."""
    return 0 if response is None else sum([one.nbytes for one in response.outputs])


def _representative(outcomes: Sequence[_Outcome]) -> Sequence[_Outcome]:
    """Return the outcomes to record for a call: those of all failed requests or, if none failed, of the first one."""
    return [one for one in outcomes if one.status != OK] or outcomes[:1]


def _outcomes(parts: Sequence[Part], answers: Answers, kind: str, error: str) -> Iterator[_Outcome]:
    if not isinstance(answers, Sequence):
        sent = UNKNOWN if answers.bytes_out is None else answers.bytes_out
        for part in parts:
            for place in range(len(part.batch.requests)):
                yield _Outcome(part.batch, place, answers.failure or OK, sent, answers.error)
        return
    for part, answer in zip(parts, answers):
        responses = answer.responses if isinstance(answer, BatchDone) else ()
        for place in range(len(part.batch.requests)):
            response = responses[place] if place < len(responses) else None
            failed = response is None or response.error is not None
            status, by = (kind, error) if failed else (OK, "")
            yield _Outcome(part.batch, place, status, nbytes_of(response), by)


def _version(ref: RequestRef) -> int:
    if VERSION_PARAMETER not in ref.parameters:
        return 0
    value = parse_json_object(ref.parameters).get(VERSION_PARAMETER)
    # If the model has only one version, the parameter comes from a client and may be anything.
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else 0


# ── ids of a batch's requests, computed on demand ────────────────────────────────────────────────────


def id_of(batches: Sequence[Batch], wanted: RequestRef) -> str:
    """Return the id of a request in these batches. For any other request, return the id that its client set, or ""."""
    for batch in batches:
        for place, ref in enumerate(batch.requests):
            if ref is wanted:
                return id_at(batch, place)
    return given_id(wanted)


def trace_of(batch: Batch) -> str:
    """Return the trace id of the first traced request of a batch, or ""."""
    contexts = batch.trace.contexts if batch.trace is not None else []
    return next((found for context in contexts if (found := trace_id(context))), "")
