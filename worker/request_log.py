"""The records of a worker's single requests: made for calls that somebody wants to know of, after they are answered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Union

from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    BatchFailed,
    RequestRef,
    ResponseRef,
)
from pytriton._protocol.lanes.request_names import id_at, object_of
from pytriton._protocol.lanes.request_records import RequestRecord
from pytriton._protocol.lanes.stats_page import Gauge
from pytriton._protocol.parameters import VERSION_PARAMETER
from pytriton.worker.callable_errors import reason

if TYPE_CHECKING:
    from pytriton.worker.model import Part

#: What a call that went well says of its requests.
OK = "ok"
_NUMBER = re.compile(r"[0-9]{1,18}")
#: What a record can hold: sizes that a proxy tells may be anything.
_MOST = (1 << 63) - 1
#: Bytes that nobody has counted.
UNKNOWN = -1
#: Of the name of an exception's type.
_MOST_TYPE = 100


class AnsweredStream(Protocol):
    """The facts that are known of a stream at its end; that of a batch has one for all of its requests."""

    @property
    def failure(self) -> str:
        """Why it failed, one of gauge.FAILURES; "" when it did not."""

    @property
    def error(self) -> str:
        """The type of the exception that it failed by, as `type_of` tells it."""

    @property
    def bytes_out(self) -> int | None:
        """Bytes of its answers, as far as they were counted."""


#: What became of the batches of one call: an answer to each, or one stream.
Answers = Union[Sequence[Union[BatchDone, BatchFailed]], AnsweredStream]


class _Outcome(NamedTuple):
    """The outcome of a request."""

    batch: Batch
    place: int
    status: str
    bytes_out: int
    error: str = ""


class RequestLog:
    """Writes the records of one worker; the gauge calls it for calls that are to have some."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._failure = self._error = ""
        gauge.on_record = self._note

    def failed(self, kind: str, requests: int, error: BaseException | None = None) -> None:
        """Count failed requests of the call at hand, and remember why they failed."""
        self._failure, self._error = kind, "" if error is None else type_of(error)
        self._gauge.failed(kind, requests)

    def _note(self, begun_ns: int, ended_ns: int, parts: Sequence[Part], answers: Answers) -> None:
        ring = self._gauge.records
        kind, self._failure = self._failure or "callable", ""
        error, self._error = self._error, ""
        budget = ring.budget
        records: list[RequestRecord] = []
        if budget and parts:
            outcomes = list(_outcomes(parts, answers, kind, error))
            rows = sum([part.batch.rows for part in parts]) or len(outcomes)
            for one in (outcomes if ring.all_wanted else _telling(outcomes))[:budget]:
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
    """Return a number as a record holds it: whoever sends a batch may say any."""
    return max(least, min(number, _MOST))


def type_of(error: BaseException) -> str:
    """Return the name of an exception's type, as far as a record has room for it."""
    return type(reason(error)).__name__[:_MOST_TYPE]


def nbytes_of(response: ResponseRef | None) -> int:
    """Return how many bytes an answer's outputs have."""
    return 0 if response is None else sum([one.nbytes for one in response.outputs])


def _telling(outcomes: Sequence[_Outcome]) -> Sequence[_Outcome]:
    """Return what stands for a call: the requests that failed, else the first one."""
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
    value = object_of(ref.parameters).get(VERSION_PARAMETER)
    # Of a model with one version, it is whatever a client has sent by that name.
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else 0
