"""Invalid data of a client fails only its own request: the others of the batch reach the worker."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fakes.triton.fake_tritonserver import STREAMED, echo, responses, run, serving, streaming

from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
)

STRINGS = "input s does not contain as many length-prefixed strings as its shape requires"
PARAMETER = "a request parameter, its key or its value, is not valid UTF-8"
WRONGS = [
    ("parameter", PARAMETER),
    ("key", PARAMETER),
    ("trace", "the trace context is not valid UTF-8"),
    ("long string", STRINGS),
    ("two strings", STRINGS),
    ("one string", STRINGS),
    ("half a length", STRINGS),
    ("foreign", STRINGS),
]


@pytest.mark.parametrize(("wrong", "said"), WRONGS)
def test_an_invalid_request_fails_alone(
    program: Path, tmp_path: Path, wrong: str, said: str
) -> None:
    """The second and the fourth of five are invalid; the worker gets the three others, twice."""
    seen = []

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        seen.append(len(batch.requests))
        return echo(lane, batch)

    environment = {"FAKE_WRONG": wrong}
    lines, heard = run(
        program, tmp_path, [serving(answer)], batches=2, requests=5, environment=environment
    )
    assert seen == [3, 3]
    refused = f"error 3 model model: {said}"
    one = [f"response to {number}, flags 1: {refused}" for number in (1, 3)]
    answers = responses(lines)
    assert [line for line in answers if "error" in line] == one * 2
    assert [line[:13] for line in answers if " y 11 " in line] == [
        f"response to {number}" for number in (0, 2, 4)
    ] * 2
    assert lines[-1] == "released 10, statistics of 10"
    assert [type(message).__name__ for message in heard] == ["Attach", "Detach"]


@pytest.mark.parametrize(("wrong", "named"), [("id", " [request id: ???]"), ("sequence", "")])
def test_a_python_models_additional_fields_are_checked(
    program: Path, tmp_path: Path, wrong: str, named: str
) -> None:
    environment = {"FAKE_WRONG": wrong}
    model: dict[str, Any] = {"pytriton_python_model": "details"}
    works = [serving(echo)]
    lines, _ = run(program, tmp_path, works, requests=2, environment=environment, **model)
    refused, served = responses(lines)
    said = f"error 3 model model: the {wrong if wrong == 'sequence' else 'request'} id"
    assert refused == f"response to 1, flags 1: {said} is not valid UTF-8{named}"
    assert served.startswith("response to 0, flags 1: y 11 ")


def test_a_correlation_id_is_trimmed(program: Path, tmp_path: Path) -> None:
    """Triton's core passes the string of a control input in as many bytes as the longest one had."""
    strings: list[bytes] = []

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        strings.extend(bytes(tensors.read_raw(lane, one.inputs[1])) for one in batch.requests)
        return echo(lane, batch)

    environment = {"FAKE_WRONG": "padded"}
    lines, _ = run(program, tmp_path, [serving(answer)], requests=2, environment=environment)
    assert sorted(strings) == [b"\1\0\0\0s", b"\3\0\0\0abc"]
    assert not any("error" in line for line in responses(lines))


@pytest.mark.parametrize("wrong", ["parameter", "long string"])
def test_a_batch_of_invalid_requests_is_answered_without_a_worker(
    program: Path, tmp_path: Path, wrong: str
) -> None:
    """Each batch of this test has one request."""
    seen: list[int] = []

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        seen.append(batch.id)
        return echo(lane, batch)

    environment = {"FAKE_WRONG": wrong, "FAKE_FIRST": "1"}
    lines, _ = run(program, tmp_path, [serving(answer)], batches=2, environment=environment)
    assert [line.partition(" error ")[2][:1] for line in responses(lines)] == ["3", "3"]
    assert seen == []
    assert lines[-1] == "released 2, statistics of 2"


@pytest.mark.parametrize(("wrong", "said"), [("parameter", PARAMETER), ("long string", STRINGS)])
def test_other_streams_continue(program: Path, tmp_path: Path, wrong: str, said: str) -> None:
    environment = {"FAKE_WRONG": wrong}
    lines, heard = run(
        program, tmp_path, [streaming], batches=2, requests=3, decoupled=True,
        environment=environment,
    )  # fmt: skip
    served = [*STREAMED, *(line.replace("to 0", "to 2") for line in STREAMED)]
    refused = f"response to 1, flags 1: error 3 model model: {said}"
    assert sorted(responses(lines)) == sorted([*served, refused] * 2)
    assert lines[-1] == "released 6, statistics of 6"
    assert [type(message).__name__ for message in heard] == ["Attach", "Detach"]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_a_number_that_json_cannot_represent_reaches_the_worker(
    program: Path, tmp_path: Path, number: str
) -> None:
    """No request fails: Python reads the names by which such numbers are written."""
    seen = []

    def answer(lane: Lane, batch: Batch) -> BatchDone:
        seen.append(json.loads(batch.requests[0].parameters)["number"])
        return echo(lane, batch)

    lines, _ = run(program, tmp_path, [serving(answer)], environment={"FAKE_NUMBER": number})
    assert " y 11 " in lines[1]
    assert seen[0] == float(number) or (math.isnan(seen[0]) and number == "nan")
