"""The examples of web services that use a model repository."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.models.digits import digits
from support.ports import lasting_port
from support.real_daemon import eventually

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "runner"


def post(url: str, content: Any = None) -> tuple[int, Any]:
    """Send a request; return the status and the JSON body."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(content).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def models(folder: Path) -> Path:
    """Return a repository with the models of the examples."""
    made = folder / "models"
    command = [sys.executable, str(EXAMPLES / "make_repository.py"), str(made)]
    subprocess.run(command, check=True)
    return made


@contextmanager
def served(command: Sequence[str], port: int, page: str, log: Path, **env: str) -> Iterator[str]:
    """Run a web service; yield its address once a page responds. No process is left behind."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=output, stderr=output)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}"):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except (urllib.error.URLError, ConnectionError):
            return False

    family: list[psutil.Process] = []
    try:
        eventually(answers, lambda: f"the service answers; it said: {log.read_text()}", 300)
        family = psutil.Process(process.pid).children(recursive=True)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(100)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    """The address of the FastAPI service, run by uvicorn."""
    for package in ("fastapi", "uvicorn", "lightgbm"):  # none is imported here: that takes seconds
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    port = lasting_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", str(port)]
    command.append("service:app")
    folder = models(tmp_path)
    with served(
        command, port, "/openapi.json", tmp_path / "service.log", MODELS=str(folder)
    ) as url:
        yield url


@pytest.fixture
def bentoml_service(tmp_path: Path) -> Iterator[str]:
    """The address of the BentoML service, which runs in its own environment."""
    if not os.environ.get("PYTRITON_TEST_BENTOML"):
        pytest.skip(
            "PYTRITON_TEST_BENTOML=1 runs it: it installs BentoML, which takes a minute or two"
        )
    from benchmarks import environments

    python = environments.ensure("bentoml-example", ("bentoml>=1.4", "-e", str(ROOT)))
    port = lasting_port()
    command = [str(python), "-m", "bentoml", "serve", "service:Digits"]
    command += ["--working-dir", str(ROOT / "examples" / "bentoml")]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    env = {
        "MODELS": str(models(tmp_path)),
        "MODEL_PYTHON": sys.executable,  # scikit-learn and LightGBM are here
        "BENTOML_HOME": str(tmp_path / "bentoml"),
        "BENTOML_DO_NOT_TRACK": "True",
    }
    with served(command, port, "/readyz", tmp_path / "service.log", **env) as url:
        yield url


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_web_service_in_front_of_a_repository(service: str) -> None:
    _, _, images, labels = digits()
    for model in ("digits_mlp", "digits_trees"):
        answers = [post(f"{service}/{model}", list(image))[1] for image in images[:40]]
        hits = [answer["digit"] == label for answer, label in zip(answers, labels)]
        assert sum(hits) > 32
    assert post(f"{service}/digits_mlp", [1.0])[0] == 422
    assert post(f"{service}/nonesuch", [1.0])[0] == 404
    assert post(f"{service}/digits_mlp/unload") == (200, {"unloaded": "digits_mlp"})
    status, reported = post(f"{service}/digits_mlp", list(images[0]))
    assert status == 404
    assert "unloaded" in reported["detail"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bentoml_service_in_front_of_a_repository(bentoml_service: str) -> None:
    """BentoML, the models and the daemon share no environment; the service stops everything that it started."""
    _, _, images, labels = digits()
    url = f"{bentoml_service}/classify"
    for model in ("digits_mlp", "digits_trees"):
        answers = [post(url, {"model": model, "pixels": list(image)})[1] for image in images[:40]]
        hits = [answer["digit"] == label for answer, label in zip(answers, labels)]
        assert sum(hits) > 32
    status, reported = post(url, {"model": "digits_mlp", "pixels": [1.0]})
    assert (status, "64" in str(reported)) == (400, True), reported
    assert post(url, {"model": "nonesuch", "pixels": [1.0]})[0] == 404
    unload = f"{bentoml_service}/unload"
    assert post(unload, {"model": "digits_mlp"}) == (200, {"unloaded": "digits_mlp"})
    status, reported = post(url, {"model": "digits_mlp", "pixels": list(images[0])})
    assert (status, "unloaded" in str(reported)) == (404, True), reported
