"""The example of a web service in front of a model repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import repositories
from support.running import eventually

from pytriton.dispatcher.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples" / "runner"


def post(url: str, content: Any = None) -> tuple[int, Any]:
    """Return the status and the JSON of an answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(content).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    """The address of the service, run by uvicorn."""
    for package in ("fastapi", "uvicorn", "lightgbm"):
        pytest.importorskip(package)
    models = tmp_path / "models"
    subprocess.run([sys.executable, str(EXAMPLES / "make_repository.py"), str(models)], check=True)
    port = free_port("127.0.0.1")
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", str(port)]
    log = tmp_path / "service.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*command, "service:app"],
            env={**os.environ, "MODELS": str(models)},
            stdout=output,
            stderr=output,
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json"):
                return True
        except urllib.error.URLError:
            return False

    try:
        eventually(answers, "the service answers", 90)
        family = psutil.Process(process.pid).children(recursive=True)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


@pytest.mark.slow
def test_a_web_service_in_front_of_a_repository(service: str) -> None:
    _, images, labels = repositories.trained_on_digits()
    for model in ("digits_mlp", "digits_trees"):
        answers = [post(f"{service}/{model}", list(image))[1] for image in images[:40]]
        hits = [answer["digit"] == label for answer, label in zip(answers, labels)]
        assert sum(hits) > 32
    assert post(f"{service}/digits_mlp", [1.0])[0] == 422
    assert post(f"{service}/nonesuch", [1.0])[0] == 404
    assert post(f"{service}/digits_mlp/unload") == (200, {"unloaded": "digits_mlp"})
    status, told = post(f"{service}/digits_mlp", list(images[0]))
    assert status == 404
    assert "unloaded" in told["detail"]
