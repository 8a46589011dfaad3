"""Scripts with a `Triton` object end by signals, or are killed at any moment, and leave nothing behind."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.real_daemon import RunningDaemon, eventually
from support.scripts import Script

from pytriton.client import ModelClient

ONES = np.ones(3, np.float32)
#: Says where it is, and stays there as long as it can.
STAGES = """
import sys, threading, time
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

stage = sys.argv[1]

def make():
    if stage == "loading":
        print("STAGE", flush=True)
        threading.Event().wait()

    @batch
    def double(**inputs):
        (x,) = inputs.values()
        return [x * 2]

    return double

x = Tensor(dtype=np.float32, shape=(-1,))
triton = Triton()
triton.bind("model", make, [x], [x], factory=True)
if stage == "starting":
    threading.Thread(target=triton.run, daemon=True).start()
    while triton._server is None or triton._server._process is None:
        time.sleep(0.01)
    print("STAGE", flush=True)
    threading.Event().wait()
triton.run()
if stage == "stopping":
    threading.Timer(0.1, print, ["STAGE"], {"flush": True}).start()
    triton.stop()
print("STAGE", flush=True)
threading.Event().wait()
"""
#: A whole one, as in PyTriton's documents; its callable prints, and takes its time.
SERVING = """
import logging, os, sys, time
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

logging.basicConfig(level=logging.INFO, stream=sys.stdout)

@batch
def slow(**inputs):
    print("BEGUN", flush=True)
    time.sleep(1.0)
    (x,) = inputs.values()
    return [x * 2]

with Triton() as triton:
    x = Tensor(dtype=np.float32, shape=(-1,))
    triton.bind("model", slow, [x], [x], config=ModelConfig(max_batch_size=8))
    if os.fork() == 0:  # its end, with all that Python does then, is not the server's
        sys.exit()
    os.wait()
    print("URL", triton.http_url, flush=True)
    triton.serve()
    print("SERVED", triton.is_alive(), flush=True)
"""
REMOTE = """
import sys, threading
import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton

with RemoteTriton(sys.argv[1]) as triton:
    x = Tensor(dtype=np.float32, shape=(-1,))
    triton.bind("guest", lambda requests: [{"OUTPUT_1": r["INPUT_1"]} for r in requests], [x], [x])
    print("BOUND", flush=True)
    triton.serve()
"""


def url_of(script: Script) -> str:
    script.wait_for("URL http")
    return script.said().split("URL ", 1)[1].split()[0]


def ask(url: str) -> list[float]:
    with ModelClient(url, "model", inference_timeout_s=60) as client:
        values: list[float] = client.infer_sample(ONES)["OUTPUT_1"].tolist()
        return values


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("starting", signal.SIGKILL),
        ("loading", signal.SIGTERM),
        ("serving", signal.SIGSEGV),
        ("stopping", signal.SIGKILL),
    ],
)
def test_a_killed_script_leaves_nothing(stage: str, number: int, tmp_path: Path) -> None:
    with Script(STAGES, tmp_path, stage) as script:
        script.wait_for("STAGE")
        assert script.end(number) == -number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_serving_gracefully(number: int, tmp_path: Path) -> None:
    """Requests in flight are answered, `serve` returns, and the script continues to its end."""
    with Script(SERVING, tmp_path) as script, ThreadPoolExecutor(1) as asking:
        asked = asking.submit(ask, url_of(script))
        script.wait_for("BEGUN")  # what models print is in the script's own output
        assert script.end(number) == 0
        assert asked.result() == [2, 2, 2]
        said = script.said()
        assert f"{signal.Signals(number).name} received, exiting." in said
        assert "SERVED False" in said
        assert "tritonserver: Started HTTPService" in said


def test_requests_in_flight_of_a_killed_script_are_answered(tmp_path: Path) -> None:
    """Workers are separate processes, so they finish their batches before everything ends."""
    with Script(SERVING, tmp_path) as script, ThreadPoolExecutor(1) as asking:
        asked = asking.submit(ask, url_of(script))
        script.wait_for("BEGUN")
        assert script.end(signal.SIGKILL) == -signal.SIGKILL
        assert asked.result() == [2, 2, 2]


def test_models_of_a_killed_remote_script_are_unregistered(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    """They were bound to a running daemon, which does not restore them at its next start either."""
    with Script(REMOTE, tmp_path, daemon.http) as script:
        script.wait_for("BOUND")
        assert [model.name for model in daemon.client.models()] == ["guest"]
        kept = [path for path in daemon.config.state_path.rglob("*") if "guest" in path.name]
        assert kept == []
        assert script.end(signal.SIGKILL) == -signal.SIGKILL
        eventually(lambda: not daemon.client.models(), "its model goes")
