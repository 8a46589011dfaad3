"""The real daemon that hostile messages are sent to, with models whose responses show that it works."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from support.models.inference import Array, Inference
from support.models.stream_client import Streaming
from support.real_daemon import RunningDaemon

from fuzz.target import Finding
from pytriton._protocol import control, messages
from pytriton.daemon import Model
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

MODEL = "fuzzed"
#: Decoupled ones: a generator, and an asynchronous generator, whose worker has several batches under way.
STREAMS = ("fuzzed-stream", "fuzzed-async-stream")
#: Models that take a text: a callable, one that streams, a `model.py`. What comes at the same time goes in one batch.
TEXTS = ("fuzzed-text", "fuzzed-text-stream", "fuzzed-python")
_TOGETHER = DynamicBatcher(max_queue_delay_microseconds=3_000)
#: What tritonserver hands on as parameters.
_HEADERS = {"http-header-forward-pattern": "x-.*", "grpc-header-forward-pattern": "x-.*"}
_MODEL_PY = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            json.loads(request.parameters() or "{}")
            request.request_id().encode()
            str(request.correlation_id()).encode()
            text = pb_utils.get_input_tensor_by_name(request, "s").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("t", text + b"!")]))
        return responses
"""
_CONFIG_PBTXT = """
backend: "python"
max_batch_size: 8
input [ { name: "s", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "t", data_type: TYPE_STRING, dims: [ 1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 3000 }
"""
#: What the allocators of a process may keep of a run: not a leak, which grows with the cases.
GROWTH_BYTES = 64 << 20
_SETTLE_S = 60.0
#: How many threads asyncio's own pool starts as they are needed, and keeps (ThreadPoolExecutor's default).
_POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
#: How much more of what there may be; a thread: OpenTelemetry's, from the first batch on that says it is traced.
_MORE = {"memory": GROWTH_BYTES, "threads": 1 + _POOL_THREADS}


@batch
def _increment(x: Array) -> dict[str, Array]:
    return {"y": x + 1}


def _increments(requests: Any) -> Iterator[list[dict[str, Array]]]:
    for more in (1, 2):
        yield [{"y": request["x"] + more} for request in requests]


async def _later_increments(requests: Any) -> AsyncIterator[list[dict[str, Array]]]:
    for results in _increments(requests):
        yield results


def _exclaim(requests: Any) -> list[dict[str, Array]]:
    for request in requests:
        json.dumps(request.parameters or {}).encode()
    return [{"t": request["s"] + np.array(b"!", object)} for request in requests]


def _exclaims(requests: Any) -> Iterator[list[dict[str, Array]]]:
    for _ in range(2):
        yield _exclaim(requests)


class Served:
    """A model with one worker, and the address at which that listens for proxies."""

    def __init__(self, daemon: RunningDaemon, model: Model, worker: str) -> None:
        info = model.info()
        self.name = info.name
        self.model = model
        self.pid = info.instances[0].pid or 0
        self.registration = info.config["parameters"]["pytriton_registration"]["string_value"]
        self.worker = worker
        self.lane_path = str(Path(daemon.config.runtime_dir) / "l" / f"{worker}.sock")


class TargetDaemon:
    """A daemon with a model of each kind, of one worker each."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        self.control_socket = Path(daemon.config.runtime_dir) / "control.sock"
        self.served = {
            MODEL: self._serve(MODEL, _increment),
            STREAMS[0]: self._serve(STREAMS[0], _increments, decoupled=True),
            STREAMS[1]: self._serve(STREAMS[1], _later_increments, decoupled=True),
        }
        texts = (
            [Tensor(name="s", dtype=bytes, shape=(1,))],
            [Tensor(name="t", dtype=bytes, shape=(1,))],
        )
        self.served[TEXTS[0]] = self._serve(TEXTS[0], _exclaim, *texts, batcher=_TOGETHER)
        self.served[TEXTS[1]] = self._serve(
            TEXTS[1], _exclaims, *texts, decoupled=True, batcher=_TOGETHER
        )
        self.served[TEXTS[2]] = self._serve_python(TEXTS[2])
        self.worker = self.served[MODEL].worker
        self.registration = self.served[MODEL].registration
        self._inference = Inference("grpc", daemon.grpc)
        self._asked = 0
        self._before: dict[str, int] = {}
        # pyzmq starts a thread, with descriptors of its own, when it sends a frame of 64 KB for the first time.
        with closing(control.ControlClient(f"ipc://{self.control_socket}")) as client:
            client.ask(messages.GetRegistrations(payloads=True), timeout_s=60.0)

    def _serve(
        self,
        name: str,
        infer: Any,
        inputs: Sequence[Tensor] = (Tensor(name="x", dtype=np.float32, shape=(-1,)),),
        outputs: Sequence[Tensor] = (Tensor(name="y", dtype=np.float32, shape=(-1,)),),
        **config: Any,
    ) -> Served:
        shape = ModelConfig(max_batch_size=8, **config)
        register = self.daemon.client.register
        return self._served(
            lambda: register(infer, name, inputs, outputs, config=shape, progress=False)
        )

    def _serve_python(self, name: str) -> Served:
        folder = Path(self.daemon.config.runtime_dir) / "models" / name
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(_MODEL_PY)
        (folder / "config.pbtxt").write_text(_CONFIG_PBTXT)
        return self._served(lambda: self.daemon.client.register_model(folder, progress=False))

    def _served(self, register: Callable[[], Model]) -> Served:
        sockets = Path(self.daemon.config.runtime_dir) / "l"
        before = set(sockets.iterdir())
        model = register()
        (lane,) = set(sockets.glob("*.sock")) - before  # its other one is for calls
        return Served(self.daemon, model, lane.stem)

    def check(self) -> None:
        """Check that the daemon and its models respond, with the same workers, and that nothing has grown.

        Raises:
            Finding: something has changed
        """
        if self.daemon.process.poll() is not None:
            raise Finding(f"the daemon ended with {self.daemon.process.returncode}")
        found = {
            model.name: (model.state, model.instances[0].pid)
            for model in self.daemon.client.status().models
        }
        if found != {one.name: ("ready", one.pid) for one in self.served.values()}:
            raise Finding(f"the models are not as they were: {found}")
        self._asked += 1
        x = np.full((1, 3), self._asked, np.float32)
        answers = [self._inference.infer(MODEL, {"x": x}, client_timeout=60.0)]
        for name in STREAMS:
            with Streaming(self.daemon.grpc, name, {"x": x}) as streaming:
                answers += streaming
        if [answer["y"].tolist() for answer in answers] != [
            (x + k).tolist() for k in (1, 1, 2, 1, 2)
        ]:
            raise Finding(f"the models answered {answers} to {x}")
        self._check_texts()
        self._check_footprint()

    def _check_texts(self) -> None:
        given = {"s": np.array([[b"check %d" % self._asked]], object)}
        answers: list[dict[str, Array]] = []
        for name in TEXTS:
            if "stream" in name:
                with Streaming(self.daemon.grpc, name, given) as streaming:
                    answers += streaming
            else:
                answers.append(self._inference.infer(name, given, client_timeout=60.0))
        if [answer["t"].tolist() for answer in answers] != [[[b"check %d!" % self._asked]]] * 4:
            raise Finding(f"the models answered {answers} to {given}")

    def close(self) -> None:
        """Close the connection to the model."""
        self._inference.close()

    def _check_footprint(self) -> None:
        if not self._before:  # the first block warms everything up
            self._before = self._footprint()
            return
        deadline = time.monotonic() + _SETTLE_S
        while True:
            now = self._footprint()
            grown = {
                what: f"{before} -> {now[what]}"
                for what, before in self._before.items()
                if now[what] > before + _MORE.get(what.rpartition(" ")[2], 0)
            }
            if not grown:
                return
            if time.monotonic() > deadline:
                raise Finding(f"there is more than before: {grown}")
            time.sleep(0.1)  # no event reports that another process has closed a descriptor

    def _footprint(self) -> dict[str, int]:
        found = {}
        watched = [("dispatcher", self.daemon.process.pid)]
        watched += [(f"worker of {one.name}", one.pid) for one in self.served.values()]
        for name, pid in watched:
            process = psutil.Process(pid)
            found[f"{name} descriptors"] = process.num_fds()
            found[f"{name} threads"] = process.num_threads()
            found[f"{name} memory"] = process.memory_info().rss
        found["processes"] = len(self.daemon.children())
        found["lane sockets"] = len(os.listdir(Path(self.daemon.config.runtime_dir) / "l"))
        return found


@contextmanager
def running_target() -> Iterator[TargetDaemon]:
    """Yield a running daemon with its models, which has to shut down in order.

    Raises:
        Finding: a model could not be unregistered, or the daemon did not stop in order
    """
    with RunningDaemon.start(tritonserver_options=_HEADERS) as daemon:
        target_daemon = TargetDaemon(daemon)
        try:
            yield target_daemon
            for one in target_daemon.served.values():
                one.model.unregister()
            code = daemon.stop()
            if code:
                raise Finding(f"the daemon ended with {code} when it was told to stop")
        finally:
            target_daemon.close()
