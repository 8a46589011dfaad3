"""Texts of requests that are not valid Unicode, and malformed strings: only the request itself gets an error.

NVIDIA's frontend accepts them, so they reach the proxy in a batch with others; the native one refuses them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.stream_client import Streaming
from support.raw_requests import Answer, Post, binary_strings, send, send_together, strings
from support.real_daemon import FRONT, RunningDaemon

from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

S = [Tensor(name="s", dtype=bytes, shape=(1,))]
T = [Tensor(name="t", dtype=bytes, shape=(1,))]
#: A batch waits until it is full, however late its requests are.
TOGETHER = 4
#: So many that are right fill it up, beside one that is wrong.
RIGHT = TOGETHER if FRONT == "native" else TOGETHER - 1
_WAIT = DynamicBatcher(max_queue_delay_microseconds=60_000_000)
_HEADER = {"http-header-forward-pattern": "x-.*"}
BAD = b"\xff\xfe"
ID = b'"id":"%s",' % BAD

MODEL_PY = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            (text,) = pb_utils.get_input_tensor_by_name(request, "s").as_numpy().reshape(-1)
            told = np.array([[text + b"!"]], object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("t", told)]))
        return responses
"""
CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "s", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "t", data_type: TYPE_STRING, dims: [ 1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 60000000 }
"""


@pytest.fixture(scope="module", params=["python", "native"])
def daemon(request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    """A daemon with this proxy, which forwards headers as parameters."""
    with RunningDaemon.start(proxy=request.param, tritonserver_options=_HEADER) as running:
        register = running.client.register
        config = ModelConfig(max_batch_size=TOGETHER, batcher=_WAIT)
        register(echo, "echo", S, T, config, progress=False)
        config = ModelConfig(max_batch_size=TOGETHER, batcher=_WAIT, decoupled=True)
        register(stream, "stream", S, T, config, progress=False)
        register(wait, "wait", S, T, ModelConfig(decoupled=True), progress=False)
        folder = Path(running.config.runtime_dir) / "models" / "python"
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(MODEL_PY)
        (folder / "config.pbtxt").write_text(CONFIG)
        running.client.register_model(folder, progress=False)
        yield running


def echo(requests: Any) -> Any:
    """Return the string with an exclamation mark."""
    return [{"t": request["s"] + np.array(b"!", object)} for request in requests]


def stream(requests: Any) -> Any:
    """Respond twice, with different marks."""
    for mark in (b"!", b"?"):
        yield [{"t": request["s"] + np.array(mark, object)} for request in requests]


async def wait(requests: Any) -> AsyncIterator[Any]:
    """Respond once, and again once the file named by the input exists."""
    yield [{"t": request["s"]} for request in requests]
    while not all(os.path.exists(request["s"].item()) for request in requests):
        await asyncio.sleep(0.01)
    yield [{"t": request["s"]} for request in requests]


def together(daemon: RunningDaemon, model: str, bad: Post) -> tuple[list[bytes], Answer]:
    """Send the bad request concurrently with valid ones; return the responses to these, and to it."""
    path = f"/v2/models/{model}/infer"
    right = [Post(path, strings("s", b"%d" % number)) for number in range(RIGHT)]
    *answers, wrong = send_together(daemon.http, [*right, bad])
    return [answer.body for answer in answers], wrong


WRONG = {
    "parameter": Post("", strings("s", b"x", more=b',"parameters":{"a":"%s"}' % BAD)),
    "key": Post("", strings("s", b"x", more=b',"parameters":{"%s":1}' % BAD)),
    "surrogate": Post(
        "", strings("s", b"x", more=b',"parameters":{"a":"\xed\xa0\x80"}')
    ),  # in the form of CESU-8
    "header": Post("", strings("s", b"x"), {"x-any": BAD.decode("latin-1")}),
    "id": Post("", strings("s", b"x", head=ID)),
    "sequence": Post("", strings("s", b"x", more=b',"parameters":{"sequence_id":"%s"}' % BAD)),
}
_ONLY_MODEL_PY = ("id", "sequence")


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("model", ["echo", "python"])
def test_invalid_unicode_fails_only_its_request(
    daemon: RunningDaemon, model: str, what: str
) -> None:
    bad = WRONG[what]._replace(path=f"/v2/models/{model}/infer")
    right, wrong = together(daemon, model, bad)
    for number, answer in enumerate(right):
        assert b'"data":["%d!"]' % number in answer
    if FRONT == "triton" and model == "echo" and what in _ONLY_MODEL_PY:  # nothing reads it
        assert b'"data":["x!"]' in wrong.body
        return
    assert wrong.status == 400
    if FRONT == "triton":
        assert f"model {model}: " in wrong.error
    assert _says_so(wrong)
    assert "closed a lane" not in daemon.said()


def _says_so(answer: Answer) -> bool:
    """Return whether a response reports an invalid text."""
    words = (
        ("is not valid UTF-8",)
        if FRONT == "triton"
        else ("Invalid UTF-8", "no valid UTF-8", "not valid UTF-8")
    )
    return any(one in answer.error for one in words)


def test_string_tensors_may_hold_any_bytes(daemon: RunningDaemon) -> None:
    """But JSON is Unicode, and the native frontend insists on that."""
    bad = Post("/v2/models/echo/infer", strings("s", BAD))
    right, odd = together(daemon, "echo", bad)
    assert all(b"!" in answer for answer in right)
    if FRONT == "native":
        assert _says_so(odd)
    else:
        assert b'"data":["%s!"]' % BAD in odd.body


def test_a_string_longer_than_its_input_fails_only_its_request(
    daemon: RunningDaemon,
) -> None:
    """tritonserver does not notice it; its own python backend, which the Python proxy needs, fails the whole batch."""
    if daemon.config.proxy == "python":
        pytest.skip("it is Triton's python backend that fails the batch")
    bad = binary_strings("/v2/models/echo/infer", "s", b"\xff\xff\xff\xff")
    right, wrong = together(daemon, "echo", bad)
    for number, answer in enumerate(right):
        assert b'"data":["%d!"]' % number in answer
    assert wrong.status == 400
    if FRONT == "triton":
        assert (
            "model echo: input s does not contain as many length-prefixed strings as its shape requires"
            in wrong.error
        )


@pytest.mark.parametrize("more", [b',"a":"%s"' % BAD, b',"%s":1' % BAD, b',"id":"%s"' % BAD])
def test_one_of_several_streams_that_start_together_fails(
    daemon: RunningDaemon, more: bytes
) -> None:
    path = "/v2/models/stream/generate_stream"
    right = [Post(path, b'{"s":"%d"}' % number) for number in range(RIGHT)]
    *answers, wrong = send_together(daemon.http, [*right, Post(path, b'{"s":"x"%s}' % more)])
    for number, answer in enumerate(answers):
        assert answer.body.count(b"data: ") == 2
        assert b'"t":"%d!"' % number in answer.body
        assert b'"t":"%d?"' % number in answer.body
    assert wrong.status == 400
    assert _says_so(wrong)


def test_streams_in_progress_continue(daemon: RunningDaemon, tmp_path: Path) -> None:
    done = tmp_path / "done"
    name = np.array([[str(done).encode()]], object)
    with Streaming(daemon.grpc, "wait", {"s": name}) as running:
        answers = iter(running)
        assert next(answers)["t"].tolist() == name.tolist()
        for more in (b',"a":"%s"' % BAD, b',"%s":1' % BAD):
            bad = Post("/v2/models/wait/generate_stream", b'{"s":"x"%s}' % more)
            assert _says_so(send(daemon.http, bad))
        done.touch()
        assert next(answers)["t"].tolist() == name.tolist()
        assert next(answers, None) is None


def test_no_lane_or_worker_was_lost(daemon: RunningDaemon) -> None:
    """The last test of this module: the same workers have served all the others."""
    status = daemon.client.status()
    assert {model.name: model.state for model in status.models} == dict.fromkeys(
        ("echo", "stream", "wait", "python"), "ready"
    )
    assert [model.instances[0].restarts for model in status.models] == [0] * 4
    assert "closed a lane" not in daemon.said()
