"""Inputs in Triton's own memory: where they are, that they are read-only, and that responses are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.models.inference import PROTOCOLS, Array, Inference
from support.real_daemon import RunningDaemon

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

X = Tensor(name="x", dtype=np.float32, shape=(-1,))
Y = Tensor(name="y", dtype=np.float32, shape=(-1,))
SEED = 20
REQUESTS = 30
LARGEST = 2_000_000


@pytest.fixture(params=PROTOCOLS)
def inference(request: pytest.FixtureRequest, daemon: RunningDaemon) -> Iterator[Inference]:
    connection = Inference(request.param, getattr(daemon, request.param))
    yield connection
    connection.close()


def _mapping(address: int) -> tuple[str, str]:
    """Return the permissions and the file of the mapping that contains an address (proc(5))."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            edges, permissions, *rest = line.split(maxsplit=5)
            start, end = (int(edge, 16) for edge in edges.split("-"))
            if start <= address < end:
                return permissions, rest[-1].strip()
    return "", ""


def _refusal(attempt: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    try:
        attempt(*arguments, **options)
    except ValueError as error:
        return str(error)
    return "not refused"


def _look(requests: Any) -> Any:
    """Report where the input is and the error of writing to it; return a part of it."""
    answers = []
    for request in requests:
        x, text = request["x"], request["text"]
        permissions, path = _mapping(x.ctypes.data)
        refusals = [_refusal(x.__setitem__, 0, 1), _refusal(x.setflags, write=True)]
        facts = [permissions, path, *refusals, type(text[0, 0]).__name__]
        answers.append({"y": x[:, 1:], "facts": np.array([facts], object), "echo": text})
    return answers


@pytest.fixture(scope="module")
def looked_at(daemon: RunningDaemon) -> None:
    for name, zero_copy in (("views", True), ("copies", False)):
        daemon.client.register(
            _look,
            name,
            inputs=[X, Tensor(name="text", dtype=bytes, shape=(1,))],
            outputs=[
                Y,
                Tensor(name="facts", dtype=bytes, shape=(-1,)),
                Tensor(name="echo", dtype=bytes, shape=(1,)),
            ],
            config=ModelConfig(max_batch_size=4),
            zero_copy_inputs=zero_copy,
            progress=False,
        )


@pytest.mark.usefixtures("looked_at")
def test_an_input_is_a_read_only_view_of_the_servers_memory(inference: Inference) -> None:
    """The array's memory is in the mapped region, and that mapping cannot be made writable."""
    x = np.arange(1000, dtype=np.float32).reshape(1, -1)
    text = np.array([["é\0".encode()]], object)
    answer = inference.infer("views", {"x": x, "text": text})
    permissions, path, *rest = [fact.decode() for fact in answer["facts"][0]]
    assert permissions == "r--s"
    assert path.startswith(("/dev/shm/", "/memfd:pytriton-lane"))
    assert "read-only" in rest[0]
    assert "WRITEABLE" in rest[1]
    assert rest[2] == "bytes"
    np.testing.assert_array_equal(answer["y"], x[:, 1:])
    assert answer["echo"].tolist() == text.tolist()


@pytest.mark.usefixtures("looked_at")
def test_without_zero_copy_an_input_is_a_writable_copy(inference: Inference) -> None:
    x = np.ones((1, 1000), np.float32)
    text = np.array([[b"t"]], object)
    answer = inference.infer("copies", {"x": x, "text": text})
    _, path, *rest = [fact.decode() for fact in answer["facts"][0]]
    assert "/dev/shm" not in path
    assert "/memfd:pytriton-lane" not in path
    assert rest == ["not refused", "not refused", "bytes"]


def _signed(x: Array) -> dict[str, Array]:
    """Return the input with its sum in front: a wrong sum reveals another request's data."""
    return {"y": np.concatenate([x.sum(axis=1, keepdims=True), x], axis=1)}


@batch
def _piece(x: Array) -> dict[str, Array]:
    return {"y": x[:, ::2]}


def _all_right(address: str, protocol: str, model: str, seed: int) -> int:
    """Send requests of random sizes, including some that enlarge the region."""
    rng = np.random.default_rng(seed)
    connection = Inference(protocol, address)
    for _ in range(REQUESTS):
        columns = int(LARGEST ** rng.random())
        x = rng.integers(0, 8, (int(rng.integers(1, 3)), columns)).astype(np.float32)
        y = connection.infer(model, {"x": x})["y"]
        expected = _signed(x)["y"] if model == "signed" else x[:, ::2]
        np.testing.assert_array_equal(y, expected)
    connection.close()
    return REQUESTS


@pytest.mark.parametrize("batching", [True, False], ids=["batching", "alone"])
def test_many_concurrent_requests_of_any_size(daemon: RunningDaemon, batching: bool) -> None:
    """Four clients over both protocols each get their own data."""
    if batching:
        batcher = DynamicBatcher(max_queue_delay_microseconds=1000)
        model = daemon.client.register(
            batch(_signed), "signed", inputs=[X], outputs=[Y], zero_copy_inputs=True, max_inflight_batches=2,
            config=ModelConfig(max_batch_size=8, batcher=batcher), progress=False,
        )  # fmt: skip
    else:
        model = daemon.client.register(
            _piece, "piece", inputs=[X], outputs=[Y], zero_copy_inputs=True,
            config=ModelConfig(max_batch_size=2, batcher=None), progress=False,
        )  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        running = [
            pool.submit(_all_right, getattr(daemon, protocol), protocol, model.name, SEED + number)
            for number, protocol in enumerate(PROTOCOLS * 2)
        ]
        assert [each.result() for each in running] == [REQUESTS] * 4
