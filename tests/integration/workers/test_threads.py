"""isolation="thread": callables run in threads of the process that registered them, unpickled."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.in_process_models import pytriton_threads, serve
from support.models.inference import Array, Inference, infer_once
from support.models.stream_client import Streaming
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

import pytriton
from pytriton.daemon import DaemonClient, connect
from pytriton.decorators import batch, get_triton_context, triton_context
from pytriton.exceptions import ModelNotFoundError, PyTritonValidationError, RegistrationError
from pytriton.model_config import ModelConfig, Tensor


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[DaemonClient]:
    """A client of one test: models that it serves in threads end when it is closed."""
    with connect(daemon.config.runtime_dir, timeout_s=60) as client:
        yield client
    eventually(lambda: not pytriton_threads(), lambda: f"these end: {pytriton_threads()}")
    with pytest.raises(PyTritonValidationError):  # no callable is held any longer
        get_triton_context(serve)
    folder = Path(daemon.config.runtime_dir) / "l"
    eventually(lambda: not [*folder.glob("*.stats")], lambda: f"left: {[*folder.iterdir()]}")


def ask_at_once(daemon: RunningDaemon, count: int) -> list[float]:
    """Send requests concurrently, each on its own connection; return the first element of each response."""

    def ask(_: int) -> float:
        return float(infer_once(daemon, "model", {"x": ONES[0]}, "grpc")["y"][0])

    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(ask, range(count)))


class Learner:
    """A model that one callable trains and another one calls; its lock makes it unpicklable."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.weight = np.zeros(1, np.float32)
        self.pid = os.getpid()

    @batch
    def infer(self, x: Array) -> dict[str, Array]:
        with self.lock:
            return {"y": x * self.weight}

    @batch
    def train(self, x: Array, target: Array) -> dict[str, Array]:
        with self.lock:
            error = target - x * self.weight
            self.weight = self.weight + 0.5 * np.mean(error * x, axis=0)[:1]
        return {"loss": np.mean(error**2, axis=1, keepdims=True)}


def test_two_models_share_one_object(client: DaemonClient, inference: Inference) -> None:
    learner = Learner()
    serve(client, learner.infer, "infer")
    client.register(
        learner.train,
        "train",
        [*X, Tensor(name="target", dtype=np.float32, shape=(-1,))],
        [Tensor(name="loss", dtype=np.float32, shape=(1,))],
        ModelConfig(max_batch_size=8),
        isolation="thread",
        progress=False,
    )
    assert inference.infer("infer", {"x": ONES})["y"].tolist() == [[0, 0]]
    for _ in range(20):
        inference.infer("train", {"x": ONES, "target": 3 * ONES})
    assert learner.weight[0] == pytest.approx(3, abs=0.01)
    assert np.allclose(inference.infer("infer", {"x": ONES})["y"], 3, atol=0.01)
    learner.weight[0] = 7  # the script's own hands are in it, too
    assert inference.infer("infer", {"x": ONES})["y"].tolist() == [[7, 7]]


def test_two_instances_overlap_and_run_in_the_registrants_process(
    client: DaemonClient, daemon: RunningDaemon
) -> None:
    meeting = threading.Barrier(2)
    seen: set[int] = set()

    def meets(requests: Any) -> Any:
        seen.add(threading.get_ident())
        meeting.wait(60)  # both are in a batch at once, or this fails
        return [{"y": request["x"]} for request in requests]

    model = serve(
        client, meets, instances=2, config=ModelConfig(batching=False), max_inflight_batches=1
    )
    info = model.info()
    assert info.isolation == "thread"
    assert [(one.state, one.pid) for one in info.instances] == [("ready", os.getpid())] * 2

    assert ask_at_once(daemon, 2) == [1, 1]
    assert len(seen) == 2
    assert threading.get_ident() not in seen
    # A batch is counted when it has been answered: the client may know before the count does.
    eventually(lambda: [one.batches for one in model.instances] == [1, 1], "each answered one")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_each_callable_of_a_list_gets_its_own_instance(
    client: DaemonClient, daemon: RunningDaemon, isolation: str, tmp_path: Path
) -> None:
    def times(factor: int) -> Any:
        def infer(requests: Any) -> Any:
            (tmp_path / str(factor)).touch()
            eventually(lambda: len(list(tmp_path.iterdir())) == 2, "both are in a batch")
            return [{"y": request["x"] * np.float32(factor)} for request in requests]

        return infer

    model = client.register(
        [times(2), times(3)], "model", X, Y, ModelConfig(batching=False),
        max_inflight_batches=1, isolation=isolation, progress=False,
    )  # fmt: skip
    assert len({one.pid for one in model.instances}) == (2 if isolation == "process" else 1)
    assert sorted(ask_at_once(daemon, 2)) == [2, 3]
    model.unregister()


def test_exceptions_fail_their_batch_only_and_keep_their_traceback(
    client: DaemonClient, inference: Inference, caplog: pytest.LogCaptureFixture
) -> None:
    class OwnError(Exception):
        pass

    @batch
    def infer(x: Array) -> dict[str, Array]:
        if x[0, 0] < 0:
            raise OwnError("no negative numbers")
        return {"y": x}

    serve(client, infer)
    with pytest.raises(InferenceServerException, match="OwnError: no negative numbers"):
        inference.infer("model", {"x": -ONES})
    assert inference.infer("model", {"x": ONES})["y"].tolist() == ONES.tolist()
    [record] = [one for one in caplog.records if one.exc_info]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], OwnError)  # the very object
    assert "model model: the callable failed" in record.getMessage()


def test_an_error_in_a_factory_is_the_cause(client: DaemonClient) -> None:
    failure = ValueError("no weights")

    def factory() -> Any:
        raise failure

    with pytest.raises(RegistrationError, match="ValueError: no weights") as caught:
        serve(client, factory, factory=True)
    assert caught.value.__cause__ is failure
    with pytest.raises(ModelNotFoundError):
        client.model("model")
    eventually(lambda: not pytriton_threads(), "its thread has ended")


def test_a_check_receives_the_callable(client: DaemonClient) -> None:
    seen: list[Any] = []
    infer = batch(lambda x: {"y": x})
    serve(client, infer, check=seen.append)
    assert seen == [infer]
    with pytest.raises(RegistrationError, match="check= returned False"):
        serve(client, infer, check=lambda _: False, replace=True)
    assert client.model("model").info().state == "ready"


def test_a_worker_thread_that_exits_in_a_batch_is_replaced(
    client: DaemonClient, inference: Inference, caplog: pytest.LogCaptureFixture
) -> None:
    @batch
    def infer(x: Array) -> dict[str, Array]:
        if x[0, 0] < 0:
            sys.exit("enough")
        return {"y": x}

    model = serve(client, infer)
    with pytest.raises(InferenceServerException, match="ended: SystemExit: enough"):
        inference.infer("model", {"x": -ONES})
    assert inference.infer("model", {"x": ONES})["y"].tolist() == ONES.tolist()
    assert model.instances[0].restarts == 1
    assert model.instances[0].pid == os.getpid()


def test_each_thread_has_its_own_context_and_output_memory(
    client: DaemonClient, inference: Inference
) -> None:
    """In a worker process they belong to the process, here to the thread."""

    @triton_context
    @batch
    def named(x: Array, triton_context: Any) -> dict[str, Array]:
        y = pytriton.empty_output((len(x), 1 << 17), np.float32)
        y[:] = len(triton_context.model_config.model_name)
        return {"y": y}

    for name in ("a", "bcd"):  # the same callable
        serve(client, named, name)
    for _ in range(3):
        assert set(inference.infer("a", {"x": ONES})["y"].flat) == {1}
        assert set(inference.infer("bcd", {"x": ONES})["y"].flat) == {3}


async def _coroutine(requests: Any) -> Any:
    return [{"y": request["x"] + 1} for request in requests]


def test_coroutines_run_on_the_event_loop_of_their_thread(
    client: DaemonClient, inference: Inference
) -> None:
    serve(client, _coroutine, instances=2)
    for _ in range(4):
        assert inference.infer("model", {"x": ONES})["y"].tolist() == [[2, 2]]


def _counting(lock: Any) -> Any:
    def count(requests: Any) -> Any:
        for i in range(int(requests[0]["x"][0])):
            with lock:
                yield [{"y": np.array([i], np.float32)} for _ in requests]

    return count


def _counting_async(lock: Any) -> Any:
    async def count(requests: Any) -> Any:
        for i in range(int(requests[0]["x"][0])):
            with lock:
                yield [{"y": np.array([i], np.float32)} for _ in requests]

    return count


@pytest.mark.parametrize("kind", [_counting, _counting_async])
def test_decoupled_models(
    client: DaemonClient, daemon: RunningDaemon, kind: Callable[[Any], Any]
) -> None:
    config = ModelConfig(batching=False, decoupled=True)
    serve(client, kind(threading.Lock()), config=config)
    for _ in range(2):
        with Streaming(daemon.grpc, "model", {"x": np.array([50], np.float32)}) as stream:
            assert [answer["y"][0] for answer in stream] == list(range(50))


def test_replacing_scaling_and_unregistering(
    client: DaemonClient, inference: Inference, caplog: pytest.LogCaptureFixture
) -> None:
    def plus(step: float) -> Any:
        lock = threading.Lock()

        @batch
        def infer(x: Array) -> dict[str, Array]:
            with lock:
                return {"y": x + step}

        return infer

    client.register(batch(lambda x: {"y": x}), "model", X, Y, progress=False)  # a process
    serve(client, plus(1), replace=True)
    assert inference.infer("model", {"x": ONES})["y"].tolist() == [[2, 2]]
    model = serve(client, plus(2), replace=True)
    assert inference.infer("model", {"x": ONES})["y"].tolist() == [[3, 3]]
    # The host of the former one hears of it on a connection of its own, maybe after the registrant has its answer.
    replaced = "model model is no longer served by this process: it was replaced"
    eventually(lambda: replaced in caplog.text, "it is told")
    model.scale(2)
    assert [one.pid for one in model.instances] == [os.getpid()] * 2
    model.scale(1)
    eventually(lambda: len([name for name in pytriton_threads() if "[" in name]) == 1, "one ends")
    assert inference.infer("model", {"x": ONES})["y"].tolist() == [[3, 3]]
    model.unregister()
    eventually(lambda: not pytriton_threads(), lambda: f"these end: {pytriton_threads()}")
    with pytest.raises(InferenceServerException):
        inference.infer("model", {"x": ONES})


def test_a_cancelled_registration_leaves_no_thread(client: DaemonClient) -> None:
    def stop_at(_: object) -> None:
        raise LookupError("enough")

    learner = Learner()
    with pytest.raises(LookupError, match="enough"):
        client.register(learner.infer, "model", X, Y, isolation="thread", progress=stop_at)
    eventually(lambda: not pytriton_threads(), "its thread has ended")
    lanes = Path(client.status().runtime_dir) / "l"
    eventually(lambda: not list(lanes.iterdir()), "nothing of it is left")


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────

SCRIPT = """
    import sys, threading, time
    import numpy as np
    from pytriton.daemon import connect
    from pytriton.decorators import batch
    from pytriton.model_config import ModelConfig, Tensor

    lock = threading.Lock()

    @batch
    def infer(x):
        with lock:
            if x[0, 0] < 0:
                print("hanging", flush=True)
                time.sleep(600)
            return {"y": x}

    client = connect(sys.argv[1], 60)
    client.register(
        infer, "hosted",
        [Tensor(name="x", dtype=np.float32, shape=(-1,))],
        [Tensor(name="y", dtype=np.float32, shape=(-1,))],
        ModelConfig(max_batch_size=8), isolation="thread", instances=1,
    )
    print("registered", flush=True)
"""
FORK = """
import os
child = os.fork()
if not child:
    time.sleep(600)
print(child, flush=True)
sys.stdin.read()
"""


def start_script(runtime_dir: str, more: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT) + more, runtime_dir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "registered\n"
    return process


def gone(client: DaemonClient) -> bool:
    return "hosted" not in [model.name for model in client.models()]


def test_the_models_of_a_killed_registrant_are_unregistered(
    daemon: RunningDaemon, inference: Inference
) -> None:
    """Although a process that it forked is still alive."""
    with start_script(daemon.config.runtime_dir, FORK) as script:
        assert script.stdout is not None
        child = int(script.stdout.readline())
        try:
            assert inference.infer("hosted", {"x": ONES})["y"].tolist() == ONES.tolist()
            with ThreadPoolExecutor(1) as executor:
                in_flight = executor.submit(inference.infer, "hosted", {"x": -ONES})
                assert script.stdout.readline() == "hanging\n"
                script.send_signal(signal.SIGKILL)
                error = in_flight.exception(60)
            assert isinstance(error, InferenceServerException)
            assert f"process {script.pid}" in str(error)
            # Whichever is noticed first: the end of the process, or that of the thread that ran the batch.
            assert re.search("has exited|ended with that process", str(error))
            eventually(lambda: gone(daemon.client), "the model is unregistered")
        finally:
            script.kill()
            os.kill(child, signal.SIGKILL)
    assert not inference.is_ready("hosted")
    folder = Path(daemon.config.runtime_dir) / "l"
    eventually(lambda: not [*folder.iterdir()], lambda: f"left: {[*folder.iterdir()]}")


def test_the_models_of_a_finished_script_are_unregistered(daemon: RunningDaemon) -> None:
    with start_script(daemon.config.runtime_dir) as script:
        _, stderr = script.communicate(timeout=60)
    assert script.returncode == 0
    assert stderr == ""
    eventually(lambda: gone(daemon.client), "the model is unregistered")
