"""A model that reads another model's stream slowly: the producer waits, and nothing accumulates."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.models.calling_models import STREAMS, UNBATCHED, Ask, Serve
from support.models.inference import Inference
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

import pytriton

#: Parts of a stream, each of 1 MiB.
PARTS = 200
#: Parts of a stream that is to end early. Its model notices this after up to 0.25 s, in which nothing makes it wait.
MANY = 100_000
#: So many may wait in the caller's proxy and on the lane together, with room to spare.
MAX_AHEAD = 80
MODEL_PY = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0])
            for number in range(count):
                if request.is_cancelled():
                    open({folder!r} + "/closed", "w").close()
                    break
                with open({folder!r} + "/made", "a") as made:
                    made.write(".")
                part = np.full(1 << 18, number, np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
MODEL_PY_CONFIG = """
backend: "python"
input [ { name: "x", data_type: TYPE_FP32, dims: [-1] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [-1] } ]
model_transaction_policy { decoupled: true }
"""


class Parts:
    """Streams x arrays of their number. Records each in a file, and creates another file if it is closed early."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __call__(self, requests: Any) -> Iterator[Any]:
        done = False
        try:
            for number in range(int(requests[0]["x"][0])):
                with open(self._folder + "/made", "a") as made:
                    made.write(".")
                yield [{"y": np.full(1 << 18, number, np.float32)}]
            done = True
        finally:
            if not done:
                open(self._folder + "/closed", "w").close()


class AsyncParts(Parts):
    """The same as an asynchronous generator."""

    async def __call__(self, requests: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        for answer in super().__call__(requests):
            yield answer


class Slow:
    """Reads one part of a stream, waits for an instruction, and returns the number of parts received correctly."""

    def __init__(self, folder: Path, model: str) -> None:
        self._folder, self._model = str(folder), model

    def __call__(self, requests: Any) -> Any:
        answers = pytriton.stream(self._model, x=requests[0]["x"])
        right = int(next(answers)["y"][0] == 0)
        with open(self._folder + "/reader", "w") as reader:
            reader.write(str(os.getpid()))
        with open(self._folder + "/go-on") as reported:
            if reported.read() == "cancel":
                answers.cancel()
        for answer in answers:
            part = answer["y"]
            right += part.shape == (1 << 18,) and bool((part == right).all())
        return [{"y": np.array([right], np.float32)}]


def _reads_in_turn(requests: Any) -> Any:
    """Read two streams of one model, the second one first. With one instance, it starts after the first has ended."""
    first, second = (pytriton.stream("in-turn", x=requests[0]["x"]) for _ in range(2))
    next(first)
    return [{"y": np.array([len(list(second)), len(list(first))], np.float32)}]


class Stage:
    """A model that produces parts, a model that reads them slowly, and the folder of their files."""

    def __init__(self, daemon: RunningDaemon, folder: Path, ask: Ask, slow: str) -> None:
        self._daemon, self._folder, self._ask, self._slow = daemon, folder, ask, slow
        self.pool = ThreadPoolExecutor(1)
        self.asked: Any = None

    def begin(self, parts: int = PARTS) -> None:
        """Start a request, and wait until its first part has been read."""
        for name in ("reader", "made", "closed"):
            (self._folder / name).unlink(missing_ok=True)
        self.asked = self.pool.submit(self._ask, self._slow, {"x": np.array([parts], np.float32)})
        eventually((self._folder / "reader").exists, "a part is read")

    def made(self) -> int:
        """Return how many parts have been produced once the number no longer changes."""
        counts = [-1]

        def stands() -> bool:
            counts.append((self._folder / "made").stat().st_size)
            time.sleep(0.5)  # there is no event: nothing is to happen
            return counts[-1] == counts[-2]

        eventually(stands, "the model stops making parts")
        return counts[-1]

    def report(self, how: str) -> None:
        """Tell the reader how to continue."""
        (self._folder / "go-on").write_text(how)

    def kill_reader(self) -> None:
        """Kill the worker that reads."""
        psutil.Process(int((self._folder / "reader").read_text())).kill()

    def end(self) -> None:
        """Release a reader that a test has left waiting."""
        if not self.asked.done():
            self.report("cancel")
        self.pool.shutdown()

    def memory(self) -> int:
        """Return tritonserver's resident memory in bytes."""
        rss: int = self._daemon.server.memory_info().rss
        return rss

    def is_closed(self) -> bool:
        """Return whether the stream was ended early."""
        return (self._folder / "closed").exists()


@pytest.fixture(scope="module", params=["generator", "asynchronous", "model.py"])
def stage(
    request: pytest.FixtureRequest, daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("parts")
    os.mkfifo(folder / "go-on")
    name = f"parts-{request.param}"
    given: dict[str, Any] = {"inputs": X, "outputs": Y, "progress": False}
    if request.param == "model.py":
        (folder / "1").mkdir()
        (folder / "config.pbtxt").write_text(MODEL_PY_CONFIG)
        (folder / "1" / "model.py").write_text(MODEL_PY.format(folder=str(folder)))
        daemon.client.register_model(str(folder), name, progress=False)
    else:
        kind = Parts if request.param == "generator" else AsyncParts
        daemon.client.register(kind(folder), name, config=STREAMS, **given)
    slow = f"slow-{request.param}"
    daemon.client.register(Slow(folder, name), slow, config=UNBATCHED, on_crash="fail", **given)
    client = Inference("http", daemon.http)
    made = Stage(daemon, folder, client.infer, slow)
    yield made
    made.end()
    client.close()


def test_a_producer_waits_until_its_caller_has_read(stage: Stage) -> None:
    before = stage.memory()
    stage.begin()
    assert stage.made() < MAX_AHEAD
    assert stage.memory() - before < 2 * MAX_AHEAD << 20
    stage.report("read")
    assert stage.asked.result()["y"].tolist() == [PARTS]
    assert not stage.is_closed()


def test_a_blocked_stream_ends_when_its_caller_cancels_it(stage: Stage) -> None:
    stage.begin(MANY)
    stage.made()
    stage.report("cancel")
    assert stage.asked.result()["y"].tolist() == [1]
    eventually(stage.is_closed, "the stream is closed")


def test_a_blocked_stream_ends_when_its_callers_worker_dies(stage: Stage) -> None:
    stage.begin(MANY)
    stage.made()
    stage.kill_reader()
    with pytest.raises(InferenceServerException, match=r"signal 9|SIGKILL"):
        stage.asked.result()
    eventually(stage.is_closed, "the stream is closed")
    stage.begin()
    stage.report("read")
    assert stage.asked.result()["y"].tolist() == [PARTS]


def test_two_streams_of_one_instance_can_be_read_one_after_the_other(
    daemon: RunningDaemon, serve: Serve, ask: Ask, tmp_path: Path
) -> None:
    serve(Parts(tmp_path), "in-turn", config=STREAMS)
    serve(_reads_in_turn, "reads-in-turn", config=UNBATCHED)
    x = {"x": np.array([100], np.float32)}
    assert ask("reads-in-turn", x)["y"].tolist() == [100, 99]
