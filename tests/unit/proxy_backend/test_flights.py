"""A batch of a decoupled model under way: who is answered, and whether it may be tried again."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.triton.fake_stub import FINAL, InferenceResponse, Request, TritonError

from pytriton._protocol.lanes.lane import LaneError
from pytriton._protocol.messages import Verdict
from pytriton.proxy_backend import translate
from pytriton.proxy_backend.chains import Handle
from pytriton.proxy_backend.flights import Flight


def flight_of(count: int) -> tuple[Flight, list[Any]]:
    requests = [Request() for _ in range(count)]
    return Flight(requests), [one.sender for one in requests]


def test_each_request_ends_once() -> None:
    flight, (first, second) = flight_of(2)
    answer = InferenceResponse()
    flight.send(0, answer, final=False)
    flight.send(0, None, final=True)
    assert first.sent == [({}, 0), (None, FINAL)]
    with pytest.raises(LaneError, match="a request that it had ended"):
        flight.send(0, answer, final=False)
    flight.end()
    assert second.sent == [(None, FINAL)]
    assert len(first.sent) == 2


def test_unanswered_requests_get_the_error() -> None:
    flight, (first, second) = flight_of(2)
    flight.send(0, None, final=True)
    flight.names = ["a", "b"]
    flight.end(translate.unavailable, "no worker")
    assert first.sent == [(None, FINAL)]
    assert second.sent == [(("no worker [request id: b]", TritonError.UNAVAILABLE), FINAL)]


def test_requests_that_are_refused_are_no_part_of_it_any_longer() -> None:
    flight, (first, second) = flight_of(2)
    flight.refuse(["is no text", None])
    assert first.sent == [(("is no text", TritonError.INVALID_ARG), FINAL)]
    assert flight.senders == [second]
    assert flight.facts() == {"losses": 0, "requests": 1, "in_row": 0, "request_id": ""}


def test_the_error_of_a_stream_between_models_goes_by_its_handle() -> None:
    """Triton swallows an error that comes after answers, and the caller would wait for ever."""
    flight, (caller, client) = flight_of(2)
    handle = Handle()
    flight.waiting = [handle.name(), ""]
    flight.send(0, translate.failure("no more", translate.error_code("NOT_FOUND")), final=True)
    assert caller.sent == [(None, FINAL)]
    assert handle.failure() == ("no more", "NOT_FOUND")
    handle.close()
    assert flight.gone(1) is False
    client.cancelled = True
    assert flight.gone(1) is True


def test_a_closed_handle_means_a_departed_client() -> None:
    flight, _ = flight_of(1)
    handle = Handle()
    flight.waiting = [handle.name()]
    assert not flight.gone(0)
    handle.close()
    assert flight.gone(0)


def test_a_batch_is_final_when_triton_has_its_requests_back_or_a_client_an_answer() -> None:
    flight, _ = flight_of(1)
    assert not flight.is_final(until_returned=False)
    flight.has_begun(None)
    assert flight.overdue_at is None
    assert flight.is_final(until_returned=False)
    assert not flight.is_final(until_returned=True)
    flight.answered = True
    assert flight.is_final(until_returned=True)
    flight.answered = False
    flight.has_returned([])
    assert flight.is_final(until_returned=True)


def test_requests_that_are_queued_again_get_no_answer_here() -> None:
    flight, (first, second) = flight_of(2)
    with pytest.raises(LaneError, match="asked to reschedule"):
        flight.has_returned([2])
    flight.has_returned([0])
    flight.end()
    assert first.sent == []
    assert second.sent == [(None, FINAL)]
    assert flight.reschedule == [0]


def test_a_loss_counts_and_the_verdict_decides() -> None:
    asked: list[dict[str, Any]] = []

    def judge(**facts: Any) -> Verdict:
        asked.append(facts)
        return Verdict("retry") if len(asked) == 1 else Verdict("fail", "it kills", whole=True)

    flight, _ = flight_of(2)
    flight.has_begun(5.0)
    assert flight.overdue_at is not None
    flight.has_lost_worker(judge, None)
    assert flight.failure is None
    flight.begin_anew()
    assert not flight.begun
    assert vars(flight)["overdue_at"] is None
    one = flight.alone(1, in_row=1)
    assert one.facts() == {"losses": 1, "requests": 1, "in_row": 2, "request_id": ""}
    one.has_lost_worker(judge, None)
    assert (one.failure, one.whole) == ("it kills", True)
    assert asked == [
        {"losses": 1, "requests": 2, "in_row": 0, "request_id": ""},
        {"losses": 2, "requests": 1, "in_row": 2, "request_id": ""},
    ]


def test_a_broken_protocol_needs_no_verdict() -> None:
    def judge(**_: Any) -> Verdict:
        raise AssertionError("nobody is asked")

    flight, _ = flight_of(1)
    flight.has_lost_worker(judge, "the worker said nonsense")
    assert flight.failure == "the worker said nonsense"
    flight.has_lost_worker(judge, "something else")
    assert flight.failure == "the worker said nonsense"
