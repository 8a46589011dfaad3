"""The requests of the benchmark with several tensors, and how answers to them are checked."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from benchmarks.load import wire
from benchmarks.load.tensors import Array
from benchmarks.load.wire import Request, WrongAnswer
from benchmarks.workloads import Workload, select
from tritonclient.grpc import service_pb2

Make = Callable[[Workload], Request]
Answer = Callable[[dict[str, Array]], tuple[bytes, dict[str, str]]]
FIRST = np.arange(4, dtype=np.float32)
RIGHT = {"OUTPUT0": FIRST + (FIRST + 1), "OUTPUT1": FIRST - (FIRST + 1)}


@pytest.fixture
def add_sub() -> Workload:
    (found,) = select("add_sub")
    return found


def over_http(outputs: dict[str, Array]) -> tuple[bytes, dict[str, str]]:
    """Return an answer's body and headers as Triton's HTTP endpoint sends it."""
    reported = [
        {"name": name, "parameters": {"binary_data_size": array.nbytes}}
        for name, array in outputs.items()
    ]
    head = json.dumps({"model_name": "add_sub", "outputs": reported}).encode()
    body = head + b"".join(array.tobytes() for array in outputs.values())
    return body, {"inference-header-content-length": str(len(head))}


def over_grpc(outputs: dict[str, Array]) -> tuple[bytes, dict[str, str]]:
    """Return an answer's body as gRPC frames it."""
    response = service_pb2.ModelInferResponse()
    for name, array in outputs.items():
        response.outputs.add(name=name)
        response.raw_output_contents.append(array.tobytes())
    message = response.SerializeToString()
    return b"\0" + len(message).to_bytes(4, "big") + message, {}


def http_request(workload: Workload) -> Request:
    return wire.triton_http(workload, "http://127.0.0.1:1")


def grpc_request(workload: Workload) -> Request:
    return wire.triton_grpc(workload, "http://127.0.0.1:1")


def test_every_input_is_sent_under_its_name(add_sub: Workload) -> None:
    """No two have the same content, so that a model that mixes them up is found out."""
    request = http_request(add_sub)
    length = int(request.headers["inference-header-content-length"])
    names = [one["name"] for one in json.loads(request.body[:length])["inputs"]]
    assert names == ["INPUT0", "INPUT1"]
    assert request.body[length:] == FIRST.tobytes() + (FIRST + 1).tobytes()
    message = service_pb2.ModelInferRequest.FromString(grpc_request(add_sub).body[5:])
    assert [one.name for one in message.inputs] == names
    assert list(message.raw_input_contents) == [FIRST.tobytes(), (FIRST + 1).tobytes()]


@pytest.mark.parametrize(("make", "answer"), [(http_request, over_http), (grpc_request, over_grpc)])
def test_outputs_are_checked_by_name(add_sub: Workload, make: Make, answer: Answer) -> None:
    """In any order; swapped, missing or other ones are wrong."""
    check = make(add_sub).check
    check(*answer(RIGHT))
    check(*answer(dict(reversed(RIGHT.items()))))
    swapped = dict(zip(RIGHT, reversed(RIGHT.values())))
    with pytest.raises(WrongAnswer, match="output OUTPUT"):
        check(*answer(swapped))
    with pytest.raises(WrongAnswer, match=r"expected \['OUTPUT0', 'OUTPUT1'\]"):
        check(*answer({"OUTPUT0": RIGHT["OUTPUT0"]}))


def test_an_error_in_a_good_status_has_no_outputs(add_sub: Workload) -> None:
    with pytest.raises(WrongAnswer, match="no outputs in"):
        http_request(add_sub).check(b'{"error":"busy"}', {})


def test_workloads_are_named_by_letter_or_key_in_any_case() -> None:
    assert [one.key for one in select("c,ADD_SUB")] == ["C1", "C2", "add_sub"]
    assert [one.key for one in select("a")] == ["A"]
    with pytest.raises(ValueError, match="no workload 'z'"):
        select("a,z")
