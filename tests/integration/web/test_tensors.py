"""Typed functions called with Triton's own protocols: with the body, and with tensors of their parameters and results."""

from __future__ import annotations

import dataclasses
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal, Optional

import msgspec
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from support.real_daemon import FRONT, RunningDaemon
from tritonclient.utils import InferenceServerException

from pytriton import batchable
from pytriton.client import ModelClient
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.exceptions import HTTPError
from pytriton.model_config import Tensor

pytestmark = pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes")


@dataclasses.dataclass
class Label:
    text: str
    score: float
    tags: list[str]


def label(
    text: str,
    top_k: Annotated[int, msgspec.Meta(ge=1)] = 3,
    mode: Literal["upper", "lower"] = "lower",
    weights: Optional[list[float]] = None,
) -> Label:
    words = (text.upper() if mode == "upper" else text).split()[:top_k]
    return Label(" ".join(words), sum(weights or [0.5]), words)


def scale(
    image: Annotated[np.ndarray, Tensor((2, -1), np.float32)], by: float = 2.0
) -> Annotated[np.ndarray, Tensor((-1, 2), np.float32)]:
    return np.asarray(image.T * np.float32(by))


@batchable(max_batch_size=8, max_delay_s=0.1)
def square(x: list[int], off: list[int] = 0) -> list[int]:  # type: ignore[assignment]
    return [HTTPError(409, "odd") if one == 13 else one * one + k for one, k in zip(x, off)]  # type: ignore[misc]


def count(text: str) -> Iterator[int]:
    yield from range(len(text.split()))


def now() -> str:
    return "now"


def reverse(data: bytes) -> bytes:
    return data[::-1]


def power(exponent: int) -> int:
    return int(2**exponent)


def ragged(rows: list[list[int]]) -> list[list[int]]:
    return rows


@pytest.fixture(scope="module", autouse=True)
def models(daemon: RunningDaemon) -> None:
    for function in (label, scale, square, count, now, reverse, power, ragged):
        daemon.client.register(function)


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def infer(
    daemon: RunningDaemon,
    protocol: str,
    model: str,
    outputs: list[str] | None = None,
    **arrays: Any,
) -> dict[str, Any]:
    """Send arrays with their batch axis by NVIDIA's client, and return all outputs."""
    module: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
    inputs = []
    kinds = {"i": "INT64", "f": "FP64", "O": "BYTES"}
    for name, given in arrays.items():
        array = np.asarray(given)
        array = array.astype(object) if array.dtype.kind in "US" else array
        datatype = "FP32" if array.dtype == np.float32 else kinds[array.dtype.kind]
        one = module.InferInput(name, array.shape, datatype)
        one.set_data_from_numpy(array)
        inputs.append(one)
    wanted = outputs and [module.InferRequestedOutput(name) for name in outputs]
    with module.InferenceServerClient(getattr(daemon, protocol)) as client:
        result = client.infer(model, inputs, outputs=wanted)
    response = result.get_response()
    if protocol == "http":
        names = [one["name"] for one in response["outputs"]]
    else:
        names = [one.name for one in response.outputs]
    return {name: result.as_numpy(name) for name in names}


def test_parameters_and_fields_are_tensors(daemon: RunningDaemon, protocol: str) -> None:
    found = infer(daemon, protocol, "label", text=[["Ä b c"]], top_k=[[2]], mode=[["upper"]], weights=[[1.5, 2]])  # fmt: skip
    assert found["text"].tolist() == [["Ä B".encode()]]
    assert (found["score"].tolist(), found["score"].dtype) == ([[3.5]], np.float64)
    assert found["tags"].tolist() == [["Ä".encode(), b"B"]]
    assert sorted(found) == ["score", "tags", "text"]
    found = infer(daemon, protocol, "label", ["body", "score"], text=[["a"]])
    assert json.loads(found["body"][0, 0]) == {"text": "a", "score": 0.5, "tags": ["a"]}
    assert found["score"].tolist() == [[0.5]]


def test_a_missing_tensor_is_the_default(daemon: RunningDaemon, protocol: str) -> None:
    found = infer(daemon, protocol, "label", ["score", "tags"], text=[["a b c d"]])
    assert {name: value.tolist() for name, value in found.items()} == {
        "score": [[0.5]],
        "tags": [[b"a", b"b", b"c"]],
    }


def test_the_body_works_too(daemon: RunningDaemon, protocol: str) -> None:
    found = infer(daemon, protocol, "label", body=[['{"text": "a b", "top_k": 1}']])
    assert json.loads(found["body"][0, 0])["text"] == "a"
    assert [*found] == ["body"]
    found = infer(daemon, protocol, "label", ["text"], body=[['{"text": "a b", "top_k": 1}']])
    assert found["text"].tolist() == [[b"a"]]


def test_the_body_holds_what_tensors_cannot(daemon: RunningDaemon, protocol: str) -> None:
    found = infer(daemon, protocol, "power", body=[['{"exponent": 64}']])
    assert {name: value.tolist() for name, value in found.items()} == {
        "body": [[b"18446744073709551616"]]
    }
    assert infer(daemon, protocol, "power", exponent=[[62]])["result"].tolist() == [[2**62]]
    with pytest.raises(InferenceServerException, match="does not fit into output 'result'"):
        infer(daemon, protocol, "power", exponent=[[64]])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"top_k": [[2]]}, "#/text: Missing required input"),
        ({"text": [["a"]], "top_k": [[0]]}, "#/top_k: Expected `int` >= 1"),
        ({"text": [["a"]], "mode": [["loud"]]}, "#/mode: Invalid enum value 'loud'"),
        ({"text": [[b"\xff"]]}, "#/text: 'utf-8' codec"),
        ({"text": [["a"]], "body": [["{}"]]}, "either the input 'body'"),
        ({"text": [["a"]], "other": [["a"]]}, "other"),
        ({"text": [["a", "b"]]}, "shape"),
        ({"text": [["a"]], "top_k": [[1.5]]}, "data-type|datatype|type"),
        ({"text": [["a"], ["b"]]}, "batch"),
    ],
)
def test_invalid_tensors(
    daemon: RunningDaemon, protocol: str, arrays: dict[str, Any], message: str
) -> None:
    with pytest.raises(InferenceServerException, match=message):
        infer(daemon, protocol, "label", **arrays)


def test_arrays(daemon: RunningDaemon, protocol: str) -> None:
    image = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    found = infer(daemon, protocol, "scale", image=image, by=[[3.0]])
    assert found["result"].dtype == np.float32
    np.testing.assert_array_equal(found["result"], image.transpose(0, 2, 1) * 3)
    with pytest.raises(InferenceServerException, match="shape"):
        infer(daemon, protocol, "scale", image=np.zeros((1, 3, 3), np.float32))


def test_bytes_are_sent_as_they_are(daemon: RunningDaemon, protocol: str) -> None:
    found = infer(daemon, protocol, "reverse", data=np.array([[b"\x00ab\x00\xff"]], object))
    assert found["result"][0, 0] == b"\xff\x00ba\x00"
    assert infer(daemon, protocol, "reverse", ["body"], data=[["ab"]])["body"].tolist() == [[b"ba"]]


def test_rows_of_a_request_and_requests_share_a_batch(daemon: RunningDaemon, protocol: str) -> None:
    found = infer(daemon, protocol, "square", x=[[1], [2], [3]], off=[[0], [1], [2]])
    assert found["result"].tolist() == [[1], [5], [11]]
    found = infer(daemon, protocol, "square", body=[['{"x": 4}'], ['{"x": 5, "off": 1}']])
    assert [json.loads(one) for one in found["body"].ravel()] == [16, 26]
    with pytest.raises(InferenceServerException, match="odd"):
        infer(daemon, protocol, "square", x=[[1], [13]])

    def call(x: int) -> Any:
        kind = {"x": [[x]]} if x % 2 else {"body": [[json.dumps({"x": x})]]}
        try:
            return infer(daemon, protocol, "square", ["result"], **kind)["result"].tolist()
        except InferenceServerException as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        results = dict(zip(range(8, 16), threads.map(call, range(8, 16))))
    assert "odd" in results.pop(13)
    assert results == {x: [[x * x]] for x in range(8, 16) if x != 13}


def test_a_function_without_parameters_needs_no_inputs(daemon: RunningDaemon) -> None:
    client = http.client.HTTPConnection(daemon.http, timeout=60)
    client.request("POST", "/v2/models/now/infer", b'{"inputs": []}')
    response = client.getresponse()
    answer = json.load(response)
    client.close()
    outputs = {one["name"]: one["data"] for one in answer["outputs"]}
    assert outputs == {"result": ["now"]}


def test_streams_yield_tensors(daemon: RunningDaemon) -> None:
    responses: list[Any] = []
    done = threading.Event()

    def keep(result: Any, error: Any) -> None:
        responses.append(error or result.as_numpy("result"))
        if len(responses) == 3:
            done.set()

    with tritonclient.grpc.InferenceServerClient(daemon.grpc) as client:
        client.start_stream(keep)
        text = tritonclient.grpc.InferInput("text", [1, 1], "BYTES")
        text.set_data_from_numpy(np.array([["a b c"]], object))
        client.async_stream_infer("count", [text])
        assert done.wait(60)
        client.stop_stream()
    assert [one.tolist() for one in responses] == [[[0]], [[1]], [[2]]]


def test_the_client_of_this_package(daemon: RunningDaemon, protocol: str) -> None:
    with ModelClient(f"{protocol}://{getattr(daemon, protocol)}", "label") as client:
        found = client.infer_sample(text=np.array([b"x y"], object), top_k=np.array([1]))
        assert (found["text"].tolist(), found["tags"].tolist()) == ([b"x"], [b"x"])
        with pytest.raises(PyTritonClientInferenceServerError, match="Missing required input"):
            client.infer_sample(top_k=np.array([1]))
    with ModelClient(f"{protocol}://{getattr(daemon, protocol)}", "square") as client:
        batch = client.infer_batch(x=np.array([[2], [3]]))
        assert batch["result"].tolist() == [[4], [9]]


def test_a_type_without_tensor_leaves_the_body(daemon: RunningDaemon, protocol: str) -> None:
    assert infer(daemon, protocol, "ragged", body=[['{"rows": [[1], []]}']]) == {
        "body": b"[[1],[]]"
    }
