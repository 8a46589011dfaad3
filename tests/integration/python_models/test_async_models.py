"""Triton Python models that respond later: coroutines, senders in threads, cancellation, streams of other models."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.daemon_pool import DaemonPool
from support.models.inference import Inference
from support.models.model_folders import CONFIG, ask, make_model
from support.models.stream_client import Streaming
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }\n"
HEAD = """
import asyncio, os, threading
import numpy as np
import triton_python_backend_utils as pb_utils

def what(request):
    return pb_utils.get_input_tensor_by_name(request, "what").as_numpy()[0].decode()

def response(told):
    return pb_utils.InferenceResponse([pb_utils.Tensor("told", np.array([str(told).encode()], np.object_))])

def call(model, text, **more):
    text = pb_utils.Tensor("what", np.array([text.encode()], np.object_))
    return pb_utils.InferenceRequest(
        inputs=[text], requested_output_names=["told"], model_name=model, **more)

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
"""
#: Answers its request when another one has come.
COROUTINES = """
class TritonPythonModel:
    def initialize(self, args):
        self.waiting = None

    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            if self.waiting is None:
                self.waiting = asyncio.Event()
                await self.waiting.wait()
            else:
                self.waiting.set()
            sender.send(response(what(request)), FINAL)
"""
#: Answers when as many requests are under way as each of them says.
TOGETHER = """
class TritonPythonModel:
    def initialize(self, args):
        self.together = threading.Barrier(4)

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(), what(request))).start()

    def answer(self, sender, text):
        try:
            self.together.wait(100)
        except threading.BrokenBarrierError:
            text = "alone"
        sender.send(response(text))
        sender.send(response(text), FINAL)
"""
#: Asks it from a coroutine, and iterates over its answers with a plain `for`.
PLAIN_FOR = """
class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            answers = await call("together", what(request)).async_exec(decoupled=True)
            sender = request.get_response_sender()
            for answer in answers:
                sender.send(response(answer.output_tensors()[0].as_numpy()[0].decode()))
            sender.send(flags=FINAL)
"""
#: Counts until its client has gone; then says how far it came.
COUNTING = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.count, args=(request.get_response_sender(), what(request))).start()

    def count(self, sender, path):
        number = 0
        gone = threading.Event()
        while not sender.is_cancelled():
            sender.send(response(number))
            number += 1
            gone.wait(0.02)
        sender.send(response("the last word"))
        sender.send(flags=FINAL)
        with open(path, "w") as file:
            file.write(f"cancelled after {number}")
"""
#: Calls others, one way or another.
CALLING = """
class TritonPythonModel:
    def execute(self, requests):
        return [response(eval(what(request), globals())) for request in requests]

def some(model, text, count):
    answers = call(model, text).exec(decoupled=True)
    told = [next(answers).output_tensors()[0].as_numpy()[0] for _ in range(count)]
    answers.cancel()
    return told, [one.output_tensors()[0].as_numpy()[0] for one in answers][-1:]

def told(answer):
    if answer.has_error():
        return answer.error().message()
    return [tensor.as_numpy()[0] for tensor in answer.output_tensors()]

async def gathered(model, texts):
    return await asyncio.gather(*(call(model, text).async_exec() for text in texts))
"""
SEQUENCE = CONFIG + "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"
#: Adds up the texts of a sequence.
STATEFUL = """
class TritonPythonModel:
    def initialize(self, args):
        self.texts = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.texts[request.correlation_id()] = ""
            self.texts[request.correlation_id()] += what(request)
            responses.append(response(self.texts[request.correlation_id()]))
        return responses
"""
MODELS = {
    "coroutines": (COROUTINES, DECOUPLED),
    "counting": (COUNTING, DECOUPLED),
    "together": (TOGETHER, DECOUPLED),
    "plain-for": (PLAIN_FOR, DECOUPLED),
    "calling": (CALLING, CONFIG),
    "stateful": (STATEFUL, SEQUENCE),
}


@pytest.fixture(scope="module")
def daemon(
    daemon_pool: DaemonPool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("models")
    with daemon_pool.lend(proxy="python") as running, ThreadPoolExecutor(2) as several:
        for name, (code, config) in MODELS.items():
            (make_model(folder / name, config=config) / "1" / "model.py").write_text(HEAD + code)
        make_model(folder / "plain")
        names = [*MODELS, "plain"]
        register = running.client.register_model  # each lane has a proxy, and each proxy a process
        list(several.map(lambda name: register(folder / name, max_inflight_batches=1), names))
        yield running


def text(what: object) -> dict[str, np.ndarray]:
    return {"what": np.array([str(what).encode()], np.object_)}


def streams(daemon: RunningDaemon, model: str, texts: list[str]) -> dict[str, list[bytes]]:
    """Send the texts concurrently; return all responses to each."""
    answers = {}

    def stream(what: str) -> None:
        with Streaming(daemon.grpc, model, text(what)) as answer:
            answers[what] = [one["told"][0] for one in answer]

    threads = [threading.Thread(target=stream, args=(what,)) for what in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return answers


def test_requests_overlap_while_a_coroutine_waits(daemon: RunningDaemon) -> None:
    answers = streams(daemon, "coroutines", ["one", "two"])
    assert answers == {"one": [b"one"], "two": [b"two"]}


def test_coroutines_can_iterate_over_streams_synchronously_in_parallel(
    daemon: RunningDaemon,
) -> None:
    """Repeated, since the stub used to crash when it released the finished stream of another model."""
    for _ in range(20):
        answers = streams(daemon, "plain-for", ["a", "b", "c", "d"])
        assert answers == {name: [name.encode()] * 2 for name in "abcd"}
    assert "proxy exited unexpectedly" not in daemon.said()


def test_a_sender_sees_that_its_client_has_cancelled(daemon: RunningDaemon, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with Streaming(daemon.grpc, "counting", text(said)) as stream:
        assert [next(iter(stream))["told"][0] for _ in range(2)] == [b"0", b"1"]
    eventually(said.exists, "the model was told")
    eventually(lambda: said.read_text().startswith("cancelled after"), "the model was told")


def test_a_stream_of_another_model_is_cancelled(daemon: RunningDaemon, tmp_path: Path) -> None:
    """The called model is asked to stop; responses that it still sends arrive."""
    said = tmp_path / "said"
    reported = ask(daemon, "calling", f"some('counting', {str(said)!r}, 3)")
    assert reported == "([b'0', b'1', b'2'], [b'the last word'])"
    eventually(said.exists, "the called model was told")


def test_calls_of_every_kind(daemon: RunningDaemon) -> None:
    assert ask(daemon, "calling", "told(call('plain', '6 * 7').exec())") == "[b'42']"
    # A model that is not decoupled has one answer, and nothing empty behind it.
    assert ask(
        daemon, "calling", "[told(one) for one in call('plain', '1').exec(decoupled=True)]"
    ) == ("[[b'1']]")
    gathered = "[told(one) for one in asyncio.run(gathered('plain', ['1', '2', '3']))]"
    assert ask(daemon, "calling", gathered) == "[[b'1'], [b'2'], [b'3']]"
    assert "exec(decoupled=True)" in ask(
        daemon, "calling", "told(call('counting', '/dev/null').exec())"
    )
    assert "version 7 is not served" in ask(
        daemon, "calling", "told(call('plain', '1', model_version=7).exec())"
    )


def test_a_sequence_of_calls_keeps_its_state(daemon: RunningDaemon) -> None:
    start, end = 1, 2
    steps = [("a", start), ("b", 0), ("c", end)]
    for number in (7, 8):
        reported = [
            ask(
                daemon,
                "calling",
                f"told(call('stateful', {what!r}, correlation_id={number}, flags={flags}).exec())",
            )
            for what, flags in steps
        ]
        assert reported == ["[b'a']", "[b'ab']", "[b'abc']"]
    with pytest.raises(InferenceServerException):  # Triton's own word, as in any sequence
        Inference("grpc", daemon.grpc).infer("stateful", text("x"))
