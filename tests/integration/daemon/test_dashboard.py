"""The dashboard of a real daemon: over HTTP, and in a real browser if there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.inference import infer_once
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually

from pytriton.decorators import batch

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@batch
def double(x: Any) -> Any:
    return {"y": x * 2}


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon.start(management_address="127.0.0.1:0") as running:
        running.client.register(double, "double", X, Y, progress=False)
        yield running


def ask(daemon: RunningDaemon, path: str, body: bytes | None = None, token: str = "") -> Any:
    url = daemon.client.status().management_urls[0]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{url}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def test_the_model_list_and_one_model_are_shown(daemon: RunningDaemon) -> None:
    rows = ask(daemon, "/page/view.json")["rows"]
    assert [(one["model"], one["instance"]) for one in rows] == [("double", ""), ("double", "0")]
    found = ask(daemon, "/page/model.json?name=double")
    assert found["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, -1], "optional": False}
    ]
    assert "/v2/models/double/infer" in ask(daemon, "/page/openapi.json")["paths"]


def test_the_queue_of_a_loaded_model_is_shown(daemon: RunningDaemon, tmp_path: Path) -> None:
    """One call occupies the only instance; further requests wait in tritonserver's queue."""
    hold = tmp_path / "hold"
    hold.touch()
    daemon.client.register(_held(hold), "held", X, Y, progress=False)
    rows = np.zeros((1, 1), np.float32)

    def infer(_: int) -> None:
        infer_once(daemon, "held", {"x": rows})

    def waiting() -> int | None:
        shown = ask(daemon, "/page/view.json")["rows"]
        found = [one["waiting"] for one in shown if one["model"] == "held"]
        return found[0] if found else None  # a snapshot is shown for a while

    with ThreadPoolExecutor(5) as pool:
        asked = pool.map(infer, range(5))
        try:
            eventually(waiting, lambda: f"the page's queue: {waiting()}")
        finally:
            hold.unlink()
        list(asked)
    eventually(lambda: waiting() == 0, lambda: f"the page's queue at last: {waiting()}")
    daemon.client.unregister("held")


def _held(hold: Path) -> Any:
    def held(x: Any) -> Any:
        import time

        while hold.exists():
            time.sleep(0.01)
        return {"y": x}

    return batch(held)


def test_the_form_needs_the_token_to_send_a_request(daemon: RunningDaemon) -> None:
    body = json.dumps(ask(daemon, "/page/model.json?name=double")["request"]).encode()
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        ask(daemon, "/page/infer?name=double", body)
    refused.value.close()
    answer = ask(daemon, "/page/infer?name=double", body, daemon.client.access_token or "")
    assert answer["outputs"][0]["data"] == [0.0]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
def test_a_browser_shows_the_model(daemon: RunningDaemon, tmp_path: Path) -> None:
    url = daemon.client.status().management_urls[0]
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"{url}/page/#double"], capture_output=True, text=True, timeout=120, check=True
    )
    assert 'id="model-title" tabindex="-1">double<' in done.stdout
    assert "Call duration" in done.stdout
    assert "Content Security Policy" not in done.stderr
