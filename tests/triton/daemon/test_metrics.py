"""/metrics of the operations server: with tritonserver's metrics, for whom the settings let, whatever a worker does."""

from __future__ import annotations

import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.inference import Inference
from support.running import RunningDaemon, eventually

from pytriton.decorators import batch
from pytriton.model_config import Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
ROWS = np.zeros((3, 2), np.float32)
PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One with a model that has served; its calls wait while a file is there."""
    hold = tmp_path_factory.mktemp("hold") / "hold"
    with RunningDaemon.start(operations="127.0.0.1:0", operations_token=True) as running:
        running.client.register(_double(hold), "double", X, Y, progress=False)
        _infer(running)
        yield running


def _double(hold: Path) -> Any:
    @batch
    def double(x: Any) -> Any:
        import time

        while hold.exists():
            time.sleep(0.01)
        return {"y": x * 2}

    return double


def _infer(daemon: RunningDaemon) -> None:
    connection = Inference("http", daemon.http)
    connection.infer("double", {"x": ROWS})
    connection.close()


def scrape(daemon: RunningDaemon, **headers: str) -> str:
    url = daemon.client.status().operations[0]
    bearer = {"Authorization": f"Bearer {daemon.client.access_token}"}
    request = urllib.request.Request(f"{url}/metrics", headers={**bearer, **headers})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def value(text: str, start: str) -> float:
    return float(next(line for line in text.splitlines() if line.startswith(start)).split()[-1])


def test_what_was_served_is_told_with_tritonserver_s_metrics(daemon: RunningDaemon) -> None:
    text = scrape(daemon)
    instance = 'instance="0",model="double",version="1"'
    assert value(text, f"pytriton_rows_total{{{instance}}}") == 3 * value(
        text, f"pytriton_requests_total{{{instance}}}"
    )
    assert value(text, f"pytriton_call_duration_seconds_count{{{instance}}}") >= 1
    # What the proxy says of a batch arrives: how long it waited, and its rows.
    waits = value(text, f"pytriton_batch_wait_seconds_count{{{instance}}}")
    assert waits == value(text, f"pytriton_calls_total{{{instance}}}")
    assert value(text, f"pytriton_worker_resident_bytes{{{instance}}}") > 1 << 20
    assert value(text, f"pytriton_load_seconds{{{instance}}}") > 0
    assert value(text, 'nv_inference_request_success{model="double",version="1"}') >= 1


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian's package prometheus) is not here")
def test_promtool_has_nothing_to_say(daemon: RunningDaemon) -> None:
    assert PROMTOOL is not None
    ours = scrape(daemon).partition("# HELP nv_")[0]  # NVIDIA's counters lack `_total`
    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=ours, capture_output=True, text=True, check=False
    )
    assert (checked.stdout, checked.stderr, checked.returncode) == ("", "", 0)


def test_openmetrics_is_told_to_who_asks_for_it(daemon: RunningDaemon) -> None:
    text = scrape(daemon, Accept="application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    assert "pytriton_calls_total{" in text
    assert "nv_inference_request_success{" in text


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic x", "Bearer \xe9"])
def test_without_the_token_nothing_is_told(daemon: RunningDaemon, given: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        scrape(daemon, Authorization=given)
    assert error.value.code == 401
    assert b"pytriton_" not in error.value.read()


def test_a_hung_worker_holds_up_no_scrape(daemon: RunningDaemon, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    daemon.client.register(_double(hold), "held", X, Y, progress=False)
    hold.touch()
    connection = Inference("http", daemon.http)
    asking = threading.Thread(target=connection.infer, args=("held", {"x": ROWS}))
    asking.start()
    try:
        instance = 'instance="0",model="held",version="1"'

        def begun() -> bool:
            return value(scrape(daemon), f"pytriton_calls_total{{{instance}}}") == 1

        eventually(begun, "the call never began")
        text = scrape(daemon)
        assert value(text, f"pytriton_call_duration_seconds_count{{{instance}}}") == 0
        assert value(text, f"pytriton_busy_seconds_total{{{instance}}}") > 0
        assert value(text, f"pytriton_batch_running_seconds{{{instance}}}") > 0
    finally:
        hold.unlink()
        asking.join(30)
        connection.close()


def test_figures_have_tritonserver_s_queue(daemon: RunningDaemon) -> None:
    model = next(one for one in daemon.client.figures().models if one.name == "double")
    assert [(one.version, one.pending) for one in model.queue] == [(1, 0)]
    assert model.queue[0].succeeded >= 1
