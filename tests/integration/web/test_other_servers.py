"""The twelve endpoints as LitServe and BentoML have them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ports import lasting_port
from support.real_daemon import FRONT, RunningDaemon, eventually

pytest.importorskip("pydantic")
pytest.importorskip("PIL.Image")
from support.web_services import typed_functions
from support.web_services.exchange import REQUESTS, Received, Sent, as_json, send

pytestmark = pytest.mark.timeout(300)

APPS = Path(typed_functions.__file__).parent
#: LitServe refuses an empty body, and BentoML takes it for the JSON `{}`.
COMPARED = [one for one in REQUESTS if one.body]


def interpreter(module: str, variable: str) -> str:
    """Return a Python that has a server: the one in the environment variable, or that of the tests."""
    if os.environ.get(variable):
        return os.environ[variable]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed, and ${variable} names no interpreter with it")
    return sys.executable


@contextlib.contextmanager
def running(folder: Path, command: Callable[[int], list[str]], **variables: str) -> Iterator[str]:
    """Run a server with its children, and return its address."""
    port = lasting_port()
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command(port),
            cwd=APPS,
            env={**os.environ, **variables},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    address = f"127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            return send(address, as_json("/labels", text="a")).status == 200
        except OSError:
            return False

    try:
        eventually(answers, lambda: f"{command(port)} answers: {log.read_text()[-3000:]}", 120)
        yield address
    finally:
        process.terminate()  # BentoML's workers are in sessions of their own, so it must stop them itself
        try:
            process.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def litserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = interpreter("litserve", "LITSERVE_PYTHON")
    with running(
        tmp_path_factory.mktemp("litserve"), lambda port: [python, "litserve_app.py", str(port)]
    ) as address:
        yield address


@pytest.fixture(scope="module")
def bentoml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = interpreter("bentoml", "BENTOML_PYTHON")
    folder = tmp_path_factory.mktemp("bentoml")
    with running(
        folder,
        lambda port: [
            python, "-m", "bentoml", "serve", "bentoml_app:Service", "--host", "127.0.0.1", "--port", str(port),
        ],
        BENTOML_DO_NOT_TRACK="True",
        BENTOML_HOME=str(folder),
    ) as address:  # fmt: skip
        yield address


@pytest.fixture(scope="module")
def models(daemon: RunningDaemon) -> RunningDaemon:
    if FRONT == "triton":
        pytest.skip("NVIDIA's frontend has no routes")
    for function in typed_functions.ALL:
        daemon.client.register(function)
    return daemon


def content(received: Received) -> Any:
    is_json = received.content_type == "application/json"
    return json.loads(received.body) if is_json else received.body


@pytest.mark.parametrize("sent", COMPARED, ids=lambda sent: f"{sent.path} {sent.body[:40]!r}")
def test_litserve_responds_alike(models: RunningDaemon, litserve: str, sent: Sent) -> None:
    ours = send(models.http, sent)
    named = sent._replace(body=sent.body.replace(b'name="image_file"', b'name="request"'))
    theirs = send(litserve, named)
    assert theirs.status == ours.status, (theirs.body, ours.body)
    if ours.status == 200:
        assert content(theirs) == content(ours)


@pytest.mark.parametrize("sent", COMPARED, ids=lambda sent: f"{sent.path} {sent.body[:40]!r}")
def test_bentoml_responds_alike(models: RunningDaemon, bentoml: str, sent: Sent) -> None:
    ours = send(models.http, sent)
    if sent.path == "/lengths" and ours.status == 200:
        # Its clients send the list that the function gets.
        text = json.loads(sent.body)["text"]
        theirs = send(bentoml, as_json("/lengths", text=[text]))
        assert (theirs.status, content(theirs)) == (200, [content(ours)])
        return
    if sent.path == "/lengths":
        pytest.skip("an invalid text may be a valid list")
    theirs = send(bentoml, sent)
    if ours.status != 200:
        # 500 for a form without the file
        assert theirs.status in (400, 500), (theirs.body, ours.body)
    else:
        assert theirs.status == 200, theirs.body
        wanted = content(ours)
        # It sends a str as plain text.
        assert content(theirs) == (wanted.encode() if isinstance(wanted, str) else wanted)
